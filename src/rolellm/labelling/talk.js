// The page of a talk. Text of models, cards and people goes in by textContent alone.

const $ = (id) => document.getElementById(id);
const fields = [...document.querySelectorAll("fieldset")].map((field) => ({
  role: field.querySelector(".role"), model: field.querySelector(".model"), about: field.querySelector(".about"),
}));
let state = null, talk = null, names = [], busy = false;
let turns = [];    // {asked, replies: [text]}; the greeting's `asked` is null

const tell = (problem) => { $("problem").textContent = problem; $("problem").hidden = !problem; };

function made(kind, where, text, ...classes) {
  const one = document.createElement(kind);
  one.textContent = text;
  one.classList.add(...classes);
  if (classes.includes("text")) one.dir = "auto";
  return where.appendChild(one);
}

async function ask(path, body) {
  const options = body && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const reply = await fetch(path, options).catch(() => { throw new Error("The server does not answer. Start it again in the terminal."); });
  if (!reply.ok) throw new Error((await reply.json()).problem);
  return reply;
}

// One thing at a time.
async function doing(work) {
  if (busy) return;
  busy = true;
  document.body.ariaBusy = "true";
  tell("");
  try { await work(); } catch (error) { tell(error.message); }
  busy = false;
  document.body.ariaBusy = "false";
}

const called = (side) => names[side] ?? (turns.length && turns[0].replies.length > 1 ? ["Left", "Right"][side] : "");

function showNames() {
  document.querySelectorAll("article").forEach((one) => { one.querySelector(".who").textContent = called(+one.dataset.side); });
}

function show(asked, replies) {
  turns.push({ asked, replies });
  if (asked !== null) made("p", $("talk"), asked, "text", "asked");
  return replies.map((text, side) => {
    const one = made("article", $("talk"), "");
    one.dataset.side = side;
    made("p", one, called(side), "who");
    const said = made("p", one, text, "text");
    said.scrollIntoView({ block: "nearest" });
    return { one, said };
  });
}

async function begin() {
  const sides = fields.filter((field) => field.role.value).map(({ role, model }) => ({ role: role.value, model: model.value }));
  const found = await (await ask("begin", { sides, blind: $("blind").checked })).json();
  ({ talk, names } = found);
  names ??= [];
  turns = [];
  $("talk").replaceChildren();
  $("talk").classList.toggle("two", sides.length === 2);
  $("votes").hidden = true;
  if (found.greetings.some(Boolean)) show(null, found.greetings);
  showNames();
  $("text").focus();
}

async function say() {
  const text = $("text").value;
  if (!text.trim()) throw new Error("The message is empty; say something.");
  const reply = await ask("say", { talk, text });
  $("votes").hidden = true;
  const shown = show(text, names.length === 1 || !$("talk").classList.contains("two") ? [""] : ["", ""]);
  showNames();
  $("text").value = "";
  const last = turns.at(-1);
  let rest = "", failed = false;
  for await (const piece of reply.body.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + piece).split("\n");
    rest = lines.pop();
    for (const { side, text: more, problem, note } of lines.filter(Boolean).map((line) => JSON.parse(line))) {
      last.replies[side] += more ?? "";
      shown[side].said.textContent = last.replies[side];
      if (problem ?? note) made("p", shown[side].one, problem ?? note, "note");
      failed ||= Boolean(problem);
    }
    shown[0].one.scrollIntoView({ block: "nearest" });
  }
  $("votes").hidden = failed || shown.length < 2 || names.length > 0;
}

async function vote(choice) {
  const found = await (await ask("vote", { talk, choice })).json();
  names = found.names;
  showNames();
  $("votes").hidden = true;
  tell(`Kept. Left was ${names[0]}, right was ${names[1]}.`);
}

function transcript() {
  return turns.map(({ asked, replies }) => [asked === null ? [] : `You: ${asked}`,
    replies.map((text, side) => `${called(side) || "Role"}: ${text}`)].flat().join("\n\n")).join("\n\n");
}

async function copy() {
  await navigator.clipboard.writeText(transcript());
  $("copy").textContent = "Copied";
  setTimeout(() => { $("copy").textContent = "Copy transcript"; }, 2000);
}

function described() {
  for (const { role, about } of fields) {
    about.textContent = state.roles.find(({ name }) => name === role.value)?.about ?? "";
  }
}

$("choice").addEventListener("submit", (event) => { event.preventDefault(); doing(begin); });
$("choice").addEventListener("change", described);
$("say").addEventListener("submit", (event) => { event.preventDefault(); doing(say); });
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); doing(say); }
});
$("copy").addEventListener("click", () => doing(copy));
$("votes").addEventListener("click", ({ target }) => { if (target.dataset.choice) doing(() => vote(target.dataset.choice)); });

doing(async () => {
  state = await (await ask("state")).json();
  fields.forEach(({ role, model }, place) => {
    if (place) role.add(new Option("nobody", ""));
    state.roles.forEach(({ name }) => role.add(new Option(name)));
    state.models.forEach((name) => model.add(new Option(name)));
    model.hidden = state.models.length < 2;
    model.selectedIndex = place && state.models.length > 1 ? 1 : 0;
  });
  if (state.models.length > 1) fields[1].role.selectedIndex = 1;
  described();
  await begin();
});
