// The one question that is shown, and what leads to another.

const shown = { parts: [], part: null, view: [], place: 0, row: null, hits: null, searched: 0, moved: false };
const turns = { show: 0, search: 0 };
const timers = {};

// Does something once the reader has paused; the latest of a kind only.
function soon(kind, milliseconds, work) {
  clearTimeout(timers[kind]);
  timers[kind] = setTimeout(() => guard(work()), milliseconds);
}

function guard(work) {
  return Promise.resolve(work).catch((error) => {
    at("browse-status").textContent = `This cannot be shown: ${error.message}`;
  });
}

function tell() {
  const { part, view, place, hits, searched } = shown;
  at("browse-status").textContent = `${whole(view.length)} of ${count(part.count, "question", "questions")}`;
  const searching = hits && searched < part.count;
  at("browse-progress").textContent = searching ? `searching, ${Math.floor((100 * searched) / part.count)} %` : "";
  at("browse-at").value = view.length ? place + 1 : "";
  at("browse-at").max = Math.max(view.length, 1);
  at("browse-at").disabled = !view.length;
  at("browse-of").textContent = `of ${whole(view.length)}`;
  at("browse-previous").disabled = place <= 0;
  at("browse-next").disabled = place >= view.length - 1;
}

async function show() {
  const turn = ++turns.show;
  const { part, view, place } = shown;
  tell();
  if (!view.length) {
    const searching = shown.hits && shown.searched < part.count;
    at("browse-question").replaceChildren(make("p", "none", searching ? "Searching …" : "No question matches."));
    shown.row = null;
    delete at("browse-question").dataset.row;
    highlight();
    return;
  }
  const row = view[place];
  if (row !== shown.row) {
    const content = await part.row(row);
    // A slower one must not take the place of what was asked for later.
    if (turn !== turns.show) return;
    at("browse-question").replaceChildren(...renderQuestion(part, row, content));
    at("browse-said").textContent = `Question ${whole(place + 1)} of ${whole(view.length)}: ${part.roleOf(row)}`;
    at("browse-question").dataset.row = row;
    shown.row = row;
  }
  highlight();
}

function highlight() {
  if (!globalThis.CSS?.highlights) return;
  CSS.highlights.delete("browse-found");
  const sought = shown.hits && shown.view.length ? words(at("browse-text").value) : [];
  const ranges = [];
  const walker = document.createTreeWalker(at("browse-question"), NodeFilter.SHOW_TEXT);
  while (sought.length && walker.nextNode()) {
    const node = walker.currentNode;
    const within = folded(node.data);
    // Where folding changes lengths, places do not carry over.
    if (within.length !== node.length) continue;
    for (const word of sought) {
      for (let from = within.indexOf(word); from >= 0 && ranges.length < 2000; from = within.indexOf(word, from + word.length)) {
        const range = new Range();
        range.setStart(node, from);
        range.setEnd(node, from + word.length);
        ranges.push(range);
      }
    }
  }
  if (ranges.length) CSS.highlights.set("browse-found", new Highlight(...ranges));
}

// Filters have changed, or a search has found more.
function refresh() {
  shown.view = select(shown.part, shown.hits);
  shown.place = shown.moved ? Math.max(shown.view.indexOf(shown.row), 0) : 0;
  return show();
}

async function search() {
  const turn = ++turns.search;
  const { part } = shown;
  const query = at("browse-text").value;
  shown.searched = 0;
  shown.hits = words(query).length ? new Uint8Array(part.count) : null;
  // To the first that is found; who leaves a search stays where it led.
  shown.moved = !shown.hits;
  await refresh();
  if (!shown.hits) return;
  let told = performance.now();
  for await (const searched of part.search(query, shown.hits)) {
    if (turn !== turns.search) return;
    shown.searched = searched;
    if (searched < part.count && performance.now() - told < 150) continue;
    await refresh();
    told = performance.now();
  }
}

function clear() {
  for (const id of ["browse-text", "browse-role", "browse-category", "browse-outcome", "browse-sort"]) at(id).value = "";
  clearTimeout(timers.search);
  turns.search++;
  shown.hits = null;
}

function choosePart(number) {
  shown.part = shown.parts[number];
  shown.row = null;
  at("browse-part").value = String(number);
  fillControls(shown.part.index);
  clear();
}

function go(place) {
  if (!(place >= 0 && place < shown.view.length)) return tell();
  shown.place = place;
  shown.moved = true;
  // Browsers count how often an address is changed, and refuse when a key is held down.
  soon("address", 300, () => history.replaceState(null, "", shown.part.link(shown.view[place])));
  const article = at("browse-question");
  return show().then(() => {
    if (article.getBoundingClientRect().top < 0) article.scrollIntoView();
  });
}

// Shows the question that the address names; tells whether it names one.
function goToAddress() {
  const named = new URLSearchParams(location.hash.slice(1));
  if (!named.has("q")) return false;
  const wanted = Number(named.get("run") ?? 1) - 1;
  const row = shown.parts[wanted]?.index.id.indexOf(named.get("q")) ?? -1;
  if (row >= 0) {
    if (shown.part !== shown.parts[wanted]) choosePart(wanted);
    clear();
    shown.moved = false;
    shown.view = select(shown.part, null);
    shown.place = row;
  }
  guard(row >= 0 || shown.view.length ? show() : refresh()).then(() => {
    if (row < 0) at("browse-status").textContent = `No question has the id ${named.get("q")}.`;
    at("questions").scrollIntoView();
  });
  return true;
}

const KEYS = { j: 1, ArrowRight: 1, k: -1, ArrowLeft: -1 };

// Keys are the section's own while it is looked at, and never those of a field or of the browser.
function pressed(event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  const active = document.activeElement ?? document.body;
  if (active.matches("input, select, textarea")) return;
  if (active !== document.body && !at("browse").contains(active)) return;
  const { top, bottom } = at("browse").getBoundingClientRect();
  if (bottom < 0 || top > innerHeight) return;
  if (event.key === "/") {
    event.preventDefault();
    at("browse-text").focus();
  } else if (event.key in KEYS) {
    event.preventDefault();
    guard(go(shown.place + KEYS[event.key]));
  }
}

function listen() {
  const changed = () => {
    shown.moved = false;
    guard(refresh());
  };
  for (const id of ["browse-role", "browse-category", "browse-outcome", "browse-sort"]) at(id).addEventListener("change", changed);
  at("browse-text").addEventListener("input", () => soon("search", 250, search));
  at("browse-form").addEventListener("submit", (event) => {
    event.preventDefault();
    soon("search", 0, search);
  });
  at("browse-clear").addEventListener("click", () => {
    clear();
    shown.moved = true;
    guard(refresh());
  });
  at("browse-part").addEventListener("change", (event) => {
    choosePart(Number(event.target.value));
    changed();
  });
  at("browse-previous").addEventListener("click", () => guard(go(shown.place - 1)));
  at("browse-next").addEventListener("click", () => guard(go(shown.place + 1)));
  at("browse-at").addEventListener("change", (event) => guard(go(Math.round(event.target.valueAsNumber) - 1)));
  addEventListener("keydown", pressed);
  addEventListener("hashchange", goToAddress);
}

async function start() {
  if (!at("browse") || typeof DecompressionStream === "undefined") return;
  shown.parts = await readParts();
  fill("browse-part", ...shown.parts.map((part) => option(String(part.number), part.index.name)));
  choosePart(0);
  listen();
  at("browse-off").hidden = true;
  at("browse").hidden = false;
  if (!goToAddress()) await refresh();
  performance.mark("browse-shown");
}

start().catch((error) => {
  if (at("browse-off")) at("browse-off").append(` They cannot be shown: ${error.message}.`);
});
