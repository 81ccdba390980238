"use strict";
const form = document.getElementById("filters");
const body = document.querySelector("#board tbody");
const lines = [...body.rows].map((row) => ({
  row,
  name: row.querySelector("b").textContent,
  places: row.dataset.places.split(" "),
  recipe: row.dataset.places.replace(/^\d+/, ""),
  values: row.dataset.values.split(" ").map(Number),
}));

function show() {
  const facets = [...form.querySelectorAll("[data-facet]")];
  const text = form.elements.text.value.trim().toLowerCase();
  const by = form.elements.sort.value;
  for (const line of lines) {
    const fits = facets.every(({ value }, at) => value === "" || value === line.places[at]);
    line.row.hidden = !fits || !line.name.toLowerCase().includes(text);
  }
  // Those of one recipe stay together.
  lines.sort(
    (one, other) =>
      one.recipe.localeCompare(other.recipe) ||
      (by === "" ? one.name.localeCompare(other.name) : other.values[by] - one.values[by]),
  );
  // They show all systems over all roles.
  const filtered = text !== "" || facets.some(({ value }, at) => value !== (at === 0 ? "0" : ""));
  for (const figure of document.querySelectorAll("#scores figure")) figure.hidden = filtered;
  body.append(...lines.map(({ row }) => row));
  const shown = lines.filter(({ row }) => !row.hidden).length;
  document.getElementById("status").textContent = shown === 1 ? "1 line" : `${shown} lines`;
}

for (const kind of ["input", "change"]) form.addEventListener(kind, show);
form.addEventListener("submit", (event) => event.preventDefault());
form.hidden = false;
show();
