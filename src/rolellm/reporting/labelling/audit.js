// The audit: three questions about one answer, by the keys 1, 2 and 3.

const QUESTIONS = [
  ["instruction", "Does it do what the question asks?", [true, false]],
  ["style", "Does it speak as this role would?", [true, false]],
  ["correct", "Is what it says correct?", [true, false, null]],
];
const WORDS = new Map([[true, "yes"], [false, "no"], [null, "cannot tell"]]);

export class Audit {
  title = "Audit";
  task = "Three questions about this answer.";
  done = "audited";
  keys = [["1 2 3", "yes, no (and for 3: cannot tell), in turn"], ["Backspace", "undo the last answer"]];

  #$;
  #press;
  #said = {};
  #order = [];      // the questions in the order in which they were answered
  #choices = [];    // {name, value, button}

  changed = false;

  constructor($, press) {
    this.#$ = $;
    this.#press = press;
    $("checks").hidden = false;
    $("tie").hidden = true;
    $("checks").append(...QUESTIONS.map((question, index) => this.#row(question, index)));
  }

  show(item, draft) {
    const saved = item.label && !item.label.skipped ? item.label : {};
    this.#said = { ...(draft ?? saved) };
    this.#order = QUESTIONS.map(([name]) => name).filter((name) => name in this.#said);
    this.changed = draft !== undefined;
    const card = document.createElement("article");
    const body = Object.assign(document.createElement("p"), { className: "text", dir: "auto", lang: item.language });
    body.textContent = item.answers[0].text;
    card.append(body);
    if (!item.answers[0].text.trim()) card.append(Object.assign(document.createElement("p"), { className: "none", textContent: "an empty answer" }));
    this.#$("answers").replaceChildren(card);
    this.#draw();
  }

  draft() {
    return this.#said;
  }

  label() {
    return this.#said;
  }

  problem() {
    const missing = QUESTIONS.flatMap(([name], index) => (name in this.#said ? [] : [index + 1]));
    return missing.length ? `Not answered yet: ${missing.join(", ")}` : "";
  }

  knows(key) {
    return key === "Backspace" || ["1", "2", "3"].includes(key);
  }

  press(key) {
    if (key === "Backspace") {
      delete this.#said[this.#order.pop()];
      this.#change();
      return;
    }
    const [name, , values] = QUESTIONS[Number(key) - 1];
    const next = name in this.#said ? values[(values.indexOf(this.#said[name]) + 1) % values.length] : true;
    this.#answer(name, next);
  }

  #answer(name, value) {
    this.#said[name] = value;
    this.#order = [...this.#order.filter((one) => one !== name), name];
    this.#change();
  }

  #change() {
    this.changed = true;
    this.#draw();
  }

  #row([name, words, values], index) {
    const row = Object.assign(document.createElement("div"), { className: "check" });
    row.setAttribute("role", "group");
    row.setAttribute("aria-label", words);
    const question = document.createElement("p");
    question.append(Object.assign(document.createElement("kbd"), { textContent: String(index + 1) }), ` ${words}`);
    const choices = Object.assign(document.createElement("div"), { className: "choices" });
    for (const value of values) {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: WORDS.get(value) });
      button.addEventListener("click", (event) => {
        if (event.detail) button.blur();
        this.#answer(name, value);
      });
      this.#choices.push({ name, value, button });
      choices.append(button);
    }
    row.append(question, choices);
    return row;
  }

  #draw() {
    for (const { name, value, button } of this.#choices) {
      button.setAttribute("aria-pressed", String(name in this.#said && this.#said[name] === value));
    }
    const said = QUESTIONS.map(([name]) => (name in this.#said ? WORDS.get(this.#said[name]) : "…"));
    this.#$("said").textContent = this.#order.length ? said.join(" · ") : "Press 1, 2 and 3: once for yes, again for no";
    this.#$("said").classList.toggle("empty", !this.#order.length);
    this.#$("save").classList.toggle("ready", this.#order.length === QUESTIONS.length);
  }
}
