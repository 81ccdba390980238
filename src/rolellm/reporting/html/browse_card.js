// One question with all its answers. What models and data sets wrote goes in as text, never as HTML.

// What the reader folded or unfolded stays so from question to question.
const unfolded = { role: false, others: false, reasons: true };

const CATEGORIES = {
  general: "General instruction",
  script_based: "Role-specific, script-based",
  script_agnostic: "Role-specific, script-agnostic",
  mixed: "Role-specific, both kinds of reference",
  role_specific: "Role-specific",
};

function make(tag, className, ...content) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...content);
  return made;
}

function prose(text, language, className = "text") {
  const made = make("p", className, text);
  made.lang = language;
  made.dir = "auto";
  return made;
}

function fold(key, title, ...content) {
  const made = make("details", "", make("summary", "", title), ...content);
  made.open = unfolded[key];
  made.addEventListener("toggle", () => {
    unfolded[key] = made.open;
  });
  return made;
}

const whole = (number) => number.toLocaleString("en");
const count = (number, one, many) => `${whole(number)} ${number === 1 ? one : many}`;
const measure = (index, name, at, row) => index[name][at]?.[row] ?? null;

function verdict(win) {
  if (win === null) return "unjudged";
  if (win === 0.5) return "tied";
  return win > 0.5 ? "won" : "lost";
}

// A win that some judge or order does not share says how much of it there is.
function verdictLine(win) {
  const word = verdict(win);
  const split = win !== 0 && win !== 0.5 && win !== 1;
  const said = split ? `${word}, ${win.toFixed(2)} of 1` : word;
  return make("span", `verdict ${word}`, said);
}

function sign(system) {
  const made = make("span", `sign s${system.series}`, system.mark);
  made.setAttribute("aria-hidden", "true");
  return made;
}

function figures(index, at, row) {
  const line = make("p", "figures");
  const win = measure(index, "win", at, row);
  const rank = measure(index, "rank", at, row);
  const rouge = measure(index, "rouge", at, row);
  const length = index.length[at][row];
  if (win !== null) line.append(verdictLine(win));
  if (rank !== null) line.append(make("span", "", `rank ${Number(rank.toFixed(2))}`));
  if (rouge !== null) line.append(make("span", "", `Rouge-L ${rouge.toFixed(3)}`));
  if (length !== null) line.append(make("span", "", count(length, "character", "characters")));
  return line;
}

function answerCard(index, at, row, content) {
  const system = index.systems[at];
  const heading = make("h4", "", sign(system), " ", make("bdi", "", system.name));
  if (system.kind !== "model") heading.append(make("span", "kind", system.kind));
  const card = make("div", "card", heading, figures(index, at, row));
  const answer = content.answers[at];
  if (answer === null) card.append(make("p", "none", "no answer"));
  else if (!answer.trim()) card.append(make("p", "none", "an empty answer"));
  else card.append(prose(answer, content.language));
  const reasons = content.reasons[at];
  if (reasons.length) {
    const list = make("ul", "reasons", ...reasons.map((reason) => make("li", "", prose(reason, "", "said"))));
    const all = reasons.length + (measure(index, "left_out", at, row) ?? 0);
    const title = all > reasons.length ? `${reasons.length} of ${all} reasons` : count(all, "reason given", "reasons given");
    card.append(fold("reasons", title, list));
  }
  return card;
}

function references(content) {
  const { language, references: all, raw } = content;
  const title = all.length > 1 ? `Reference 1 of ${all.length}` : "Reference";
  const card = make("div", "card reference", make("h4", "", title), prose(all[0] ?? "", language));
  if (all.length > 1) {
    const others = all.slice(1).map((text) => prose(text, language));
    card.append(fold("others", "other references", ...others));
  }
  if (raw === null) return [card];
  return [card, make("div", "card reference", make("h4", "", "Role-free target"), prose(raw, language))];
}

function renderQuestion(part, row, content) {
  const { index } = part;
  const filed = CATEGORIES[index.categories[index.category[row]]];
  const link = make("a", "permalink", index.id[row]);
  link.href = part.link(row);
  link.title = "A link to this question";
  const name = make("b", "", part.roleOf(row));
  name.dir = "auto";
  const heading = make("h3", "", name, " ", make("span", "", filed), " ", link);
  const asked = make("div", "question", heading);
  if (content.description) asked.append(fold("role", "Who is asked", prose(content.description, content.language)));
  asked.append(prose(content.question, content.language));
  const answers = index.systems.map((_, at) => answerCard(index, at, row, content));
  return [asked, make("div", "cards references", ...references(content)), make("div", "cards answers", ...answers)];
}
