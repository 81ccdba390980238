// Ranking: letters from best to worst, ties by "=".

export class Ranking {
  title = "Ranking";
  task = "Rank the answers from best to worst: how well does each speak as this role would, and know what it knows?";
  done = "ranked";
  keys = [["A B C …", "rank, from best to worst"], ["=", "tie the next one with the last"],
    ["Backspace", "undo the last one"]];

  #$;
  #press;
  #groups = [];        // letters, best first: [["B"], ["A", "C"]]
  #tying = false;
  #cards = new Map();  // letter to its card

  changed = false;

  constructor($, press) {
    this.#$ = $;
    this.#press = press;
  }

  show(item, draft) {
    const given = draft ?? item.label?.groups ?? [];
    this.#groups = given.map((group) => [...group]);
    this.#tying = false;
    this.changed = draft !== undefined;
    this.#cards = new Map(item.answers.map(({ letter, text }) => [letter, this.#card(letter, text, item.language)]));
    this.#$("answers").replaceChildren(...this.#cards.values());
    this.#draw();
  }

  draft() {
    return this.#groups;
  }

  label() {
    return { groups: this.#groups };
  }

  problem() {
    const missing = [...this.#cards.keys()].filter((letter) => !this.#groups.flat().includes(letter));
    if (!missing.length) return "";
    return `Not ranked yet: ${missing.join(", ")}`;
  }

  knows(key) {
    return key === "=" || key === "Backspace" || this.#cards.has(key.toUpperCase());
  }

  // Says what is wrong with it, where something is.
  press(key) {
    if (key === "Backspace") return this.#undo();
    if (key === "=") return this.#tie();
    return this.#rank(key.toUpperCase());
  }

  #rank(letter) {
    if (this.#groups.flat().includes(letter)) return `${letter} is already ranked; Backspace undoes the last one`;
    if (this.#tying) this.#groups.at(-1).push(letter);
    else this.#groups.push([letter]);
    this.#tying = false;
    this.#change();
  }

  #tie() {
    if (!this.#groups.length) return "Press the best letter first, then = and the letter that ties with it";
    if (this.#groups.flat().length === this.#cards.size) return "All are ranked; Backspace undoes the last one";
    this.#tying = true;
    this.#change();
  }

  #undo() {
    if (this.#tying) {
      this.#tying = false;
    } else if (this.#groups.length) {
      this.#groups.at(-1).pop();
      if (!this.#groups.at(-1).length) this.#groups.pop();
    }
    this.#change();
  }

  #change() {
    this.changed = true;
    this.#draw();
  }

  #card(letter, text, language) {
    const card = document.createElement("article");
    const button = document.createElement("button");
    const badge = Object.assign(document.createElement("span"), { className: "letter", textContent: letter });
    const place = Object.assign(document.createElement("span"), { className: "place" });
    button.type = "button";
    button.append(badge, place);
    button.addEventListener("click", (event) => {
      if (event.detail) button.blur();
      this.#press(letter);
    });
    const body = Object.assign(document.createElement("p"), { className: "text", dir: "auto", lang: language });
    body.textContent = text;
    card.append(button, body);
    if (!text.trim()) card.append(Object.assign(document.createElement("p"), { className: "none", textContent: "an empty answer" }));
    return card;
  }

  #draw() {
    let better = 0;
    const places = new Map();
    for (const group of this.#groups) {
      for (const letter of group) places.set(letter, `${better + 1}${group.length > 1 ? " (tie)" : ""}`);
      better += group.length;
    }
    for (const [letter, card] of this.#cards) {
      const place = places.get(letter);
      card.classList.toggle("ranked", place !== undefined);
      card.querySelector(".place").textContent = place === undefined ? "" : `place ${place}`;
    }
    const said = this.#groups.map((group) => group.join(" = ")).join(" › ");
    const full = this.#groups.flat().length === this.#cards.size;
    this.#$("said").textContent = said + (this.#tying ? " = …" : full ? "" : said ? " › …" : "Best first: press a letter");
    this.#$("said").classList.toggle("empty", !said);
    this.#$("save").classList.toggle("ready", full);
  }
}
