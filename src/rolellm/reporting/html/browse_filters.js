// Which questions, and in which order: the choices a part offers, and the rows they leave.

const at = (id) => document.getElementById(id);

function option(value, label) {
  const made = make("option", "", label);
  made.value = value;
  return made;
}

function group(label, options) {
  const made = make("optgroup", "", ...options);
  made.label = label;
  return made;
}

function fill(id, ...options) {
  at(id).replaceChildren(...options);
  at(id).closest("label").hidden = options.length < 2;
}

function outcomeOptions(index) {
  const groups = [];
  if (index.disputed.length) groups.push(option("disputed", "judges or orders disagree"));
  index.systems.forEach(({ name }, one) => {
    const options = [];
    if (index.win[one]) {
      for (const word of ["won", "tied", "lost"]) options.push(option(`${word}:${one}`, `${name}: ${word}`));
    }
    const judged = index.win[one] ?? index.rank[one];
    if (judged?.includes(null)) options.push(option(`unjudged:${one}`, `${name}: not judged`));
    if (index.length[one].includes(null)) options.push(option(`absent:${one}`, `${name}: no answer`));
    if (options.length) groups.push(group(name, options));
  });
  return groups;
}

const APART = { win: "win rates furthest apart", rank: "ranks furthest apart", rouge: "Rouge-L furthest apart" };

function fillControls(index) {
  const numbered = (names) => names.map((name, number) => option(String(number), name));
  const roles = index.roles.map((name, number) => [name, number]);
  roles.sort((one, other) => one[0].localeCompare(other[0]));
  fill("browse-role", option("", "any"), ...roles.map(([name, number]) => option(String(number), name)));
  fill("browse-category", option("", "any"), ...numbered(index.categories.map((name) => CATEGORIES[name])));
  fill("browse-outcome", option("", "any"), ...outcomeOptions(index));
  const apart = Object.keys(APART).filter((name) => index[name].filter(Boolean).length > 1);
  const lengths = index.systems.length > 1 ? [option("length", "lengths furthest apart")] : [];
  fill("browse-sort", option("", "as in the data"), ...apart.map((name) => option(name, APART[name])), ...lengths);
}

function outcomeTest(index, chosen) {
  if (chosen === "disputed") {
    const disputed = new Set(index.disputed);
    return (row) => disputed.has(row);
  }
  const [word, number] = chosen.split(":");
  if (word === "absent") return (row) => index.length[number][row] === null;
  if (word === "unjudged") {
    return (row) => measure(index, "win", number, row) === null && measure(index, "rank", number, row) === null;
  }
  return (row) => verdict(measure(index, "win", number, row)) === word;
}

function spread(columns, row) {
  let low = Infinity;
  let high = -Infinity;
  for (const column of columns) {
    const value = column?.[row] ?? null;
    if (value === null) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  return high - low;
}

// The rows that pass all filters, in the chosen order; rows without a measure come last.
function select({ index, count: rows }, hits) {
  const tests = [];
  const [role, category, outcome] = ["browse-role", "browse-category", "browse-outcome"].map((id) => at(id).value);
  if (role) tests.push((row) => index.role[row] === Number(role));
  if (category) tests.push((row) => index.category[row] === Number(category));
  if (outcome) tests.push(outcomeTest(index, outcome));
  if (hits) tests.push((row) => hits[row] === 1);
  const view = [];
  for (let row = 0; row < rows; row++) if (tests.every((test) => test(row))) view.push(row);
  const by = at("browse-sort").value;
  if (by) {
    const spreads = new Map(view.map((row) => [row, spread(index[by], row)]));
    view.sort((one, other) => spreads.get(other) - spreads.get(one));
  }
  return view;
}
