// The page that both tasks share: getting items, saving labels, moving about, keys and progress.
// Text of models and data sets goes in by textContent alone; the server has spelt out what cannot be seen.

import { Audit } from "./audit.js";
import { Ranking } from "./ranking.js";

const $ = (id) => document.getElementById(id);
const GONE = "The server does not answer. Start it again in the terminal and open the address that it prints; "
  + "your saved labels are kept.";

let state = null;     // {kind, annotator, statuses, commands} as the server has it
let view = null;      // Ranking or Audit
let at = -1;          // the item shown; -1 is the end
let busy = false;
const drafts = new Map();    // what was begun and not saved, by item
const looked = new Map();    // milliseconds for which an item was on the screen
let since = null;

async function ask(path, body) {
  const options = { cache: "no-store" };
  if (body !== undefined) {
    Object.assign(options, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
    });
  }
  let reply, value;
  try {
    reply = await fetch(path, options);
    value = await reply.json();
  } catch {
    throw new Error(GONE);
  }
  if (!reply.ok) throw new Error(value.problem);
  return value;
}

function tell(problem) {
  $("problem").textContent = problem;
  $("problem").hidden = !problem;
}

// One thing at a time: what is pressed while a request is on its way is dropped.
async function doing(work) {
  if (busy) return;
  busy = true;
  tell("");
  try {
    await work();
  } catch (error) {
    tell(error.message);
  } finally {
    busy = false;
  }
}

function clock(running) {
  if (since !== null && at >= 0) looked.set(at, (looked.get(at) ?? 0) + performance.now() - since);
  since = running && !document.hidden ? performance.now() : null;
}

function progress() {
  const total = state.statuses.length;
  const open = state.statuses.filter((status) => status === "open").length;
  const status = at < 0 ? "" : { open: "", done: " · saved", skipped: " · skipped" }[state.statuses[at]];
  $("position").textContent = at < 0 ? `All ${total}` : `${at + 1} of ${total}`;
  $("left").textContent = `${open ? `${open} left` : "none left"}${status}`;
  $("progress").max = total;
  $("progress").value = total - open;
  $("who").textContent = state.annotator;
}

function keep() {
  if (at >= 0 && view.changed) drafts.set(at, view.draft());
}

async function show(number) {
  const item = await ask(`item/${number}`);
  clock(false);
  keep();
  at = number;
  history.replaceState(null, "", `#${at + 1}`);
  $("end").hidden = true;
  $("work").hidden = $("tray").hidden = false;
  $("role").textContent = item.role;
  unfoldable("about", item.description !== null);
  text($("description"), item.description ?? "", item.language);
  text($("question"), item.question, item.language);
  unfoldable("given", item.references.length > 0);
  $("given-title").textContent = item.references.length > 1 ? `${item.references.length} references` : "Reference";
  $("references").replaceChildren(...item.references.map((one) => {
    const line = document.createElement("li");
    line.className = "text";
    line.dir = "auto";
    text(line, one, item.language);
    return line;
  }));
  view.show(item, drafts.get(at));
  progress();
  scrollTo(0, 0);
  clock(true);
}

// What has nothing inside goes; what a reader unfolded stays so from item to item.
function unfoldable(id, there) {
  $(id).hidden = !there;
}

function text(node, content, language) {
  node.textContent = content;
  node.lang = language;
}

function end() {
  clock(false);
  keep();
  at = -1;
  history.replaceState(null, "", "#end");
  const skipped = state.statuses.filter((status) => status === "skipped").length;
  const done = state.statuses.length - skipped;
  $("work").hidden = $("tray").hidden = true;
  $("end").hidden = false;
  $("end-title").textContent = "Done. Thank you!";
  $("end-counts").textContent = `${done} ${view.done}${skipped ? `, ${skipped} skipped` : ""}.`;
  $("commands").replaceChildren(...Object.entries(state.commands).flatMap(([why, command]) => {
    const [term, line] = [document.createElement("dt"), document.createElement("dd")];
    term.textContent = why;
    line.append(Object.assign(document.createElement("code"), { textContent: command }));
    return [term, line];
  }));
  progress();
  scrollTo(0, 0);
}

function nextOpen(from) {
  const total = state.statuses.length;
  for (let step = 0; step < total; step += 1) {
    const number = (from + step) % total;
    if (state.statuses[number] === "open") return number;
  }
  return -1;
}

async function onwards() {
  const next = nextOpen(at + 1);
  if (next < 0) end();
  else await show(next);
}

async function store(value) {
  clock(true);
  const seconds = (looked.get(at) ?? 0) / 1000;
  state = await ask("label", { item: at, seconds, ...value });
  drafts.delete(at);
  view.changed = false;
  progress();
  await onwards();
}

const save = () => doing(async () => {
  // Looked at again and left as it was: nothing new to write.
  if (!view.changed && state.statuses[at] === "done") return onwards();
  const problem = view.problem();
  if (problem) throw new Error(problem);
  return store(view.label());
});
const skip = () => doing(() => store({ skipped: true }));
const back = () => doing(async () => {
  if (at !== 0) await show(at < 0 ? state.statuses.length - 1 : at - 1);
});
const forth = () => doing(async () => {
  if (at >= 0 && at < state.statuses.length - 1) await show(at + 1);
  else if (at >= 0 && state.commands) end();
});
const press = (key) => {
  tell(view.press(key) ?? "");
};
const fold = () => {
  const parts = [$("about"), $("given")].filter((part) => !part.hidden);
  const open = !parts.some((part) => part.open);
  for (const part of parts) part.open = open;
};
const help = () => ($("keys").open ? $("keys").close() : $("keys").showModal());

const KEYS = { Enter: save, ArrowLeft: back, ArrowRight: forth, s: skip, S: skip, "?": help, 0: fold };

// A letter by what is printed on the key where the layout is no Latin one.
function meant(event) {
  const code = /^Key([A-Z])$/.exec(event.code);
  return code && !/^[\x21-\x7e]$/.test(event.key) && event.key.length === 1 ? code[1] : event.key;
}

function keydown(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || !state) return;
  const key = meant(event);
  if ($("keys").open) {
    if (key === "?") help();
    return;
  }
  // On a button or a fold that was tabbed to, Enter is for that.
  if (key === "Enter" && event.target.closest("button, summary")) return;
  if (event.repeat && key === "Enter") return;
  const known = at < 0 ? key === "ArrowLeft" || key === "?" : Object.hasOwn(KEYS, key) || view.knows(key);
  if (!known) return;
  event.preventDefault();
  if (Object.hasOwn(KEYS, key)) KEYS[key]();
  else if (!busy) press(key);
}

function listKeys() {
  const common = [["Enter", "save and continue"], ["← →", "previous and next, without saving"],
    ["s", "skip this one"], ["0", "fold or unfold what is above the answers"], ["?", "show these keys"]];
  $("key-list").replaceChildren(...[...view.keys, ...common].flatMap(([key, what]) => {
    const [term, line] = [document.createElement("dt"), document.createElement("dd")];
    term.append(...key.split(" ").map((one) => Object.assign(document.createElement("kbd"), { textContent: one })));
    line.textContent = what;
    return [term, line];
  }));
}

function listen() {
  const buttons = { back, forth, skip, save, help, close: help, undo: () => press("Backspace"), tie: () => press("=") };
  for (const [id, work] of Object.entries(buttons)) {
    $(id).addEventListener("click", (event) => {
      // After a click the keys are the page's again.
      if (event.detail) event.currentTarget.blur();
      work();
    });
  }
  $("again").addEventListener("click", () => doing(() => show(0)));
  document.addEventListener("keydown", keydown);
  document.addEventListener("visibilitychange", () => clock(at >= 0));
  addEventListener("hashchange", () => doing(open));
}

async function open() {
  const wanted = Number(location.hash.slice(1)) - 1;
  const number = Number.isInteger(wanted) && wanted >= 0 && wanted < state.statuses.length ? wanted : nextOpen(0);
  if (number < 0) end();
  else await show(number);
}

doing(async () => {
  try {
    state = await ask("state");
  } catch (error) {
    $("tray").hidden = false;
    throw error;
  }
  view = new { ranking: Ranking, audit: Audit }[state.kind]($, press);
  document.title = `${view.title} · ${state.annotator}`;
  document.body.dataset.kind = state.kind;
  $("task").textContent = view.task;
  listKeys();
  listen();
  await open();
});
