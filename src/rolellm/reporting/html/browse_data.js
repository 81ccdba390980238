// The data of the page: an index a part, and blocks of texts that are unpacked when somebody looks.

const KEPT_BLOCKS = 12;

const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

// A later element, or the end of the page, says that this one has been read to its end.
async function element(id) {
  for (;;) {
    const loaded = document.readyState !== "loading";
    const found = document.getElementById(id);
    if (found && (loaded || found.nextElementSibling)) return found;
    if (loaded) throw new Error(`the file is not whole: it lacks ${id}`);
    await pause(10);
  }
}

async function unpack(id) {
  const text = atob((await element(id)).textContent);
  const bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at++) bytes[at] = text.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).json();
}

// The block that holds an item: the last that begins at it or before it.
function blockOf(starts, item) {
  let low = 0;
  let high = starts.length;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (starts[middle] <= item) low = middle;
    else high = middle;
  }
  return low;
}

const folded = (text) => text.normalize("NFKC").toLowerCase();

// Words that must all occur, in any order; "a phrase" in quotation marks is one word.
function words(query) {
  const found = folded(query).matchAll(/"([^"]+)"?|(\S+)/g);
  return [...found].map((match) => match[1] ?? match[2].replaceAll('"', "")).filter(Boolean);
}

class Part {
  constructor(number, index) {
    this.number = number;
    this.index = index;
    this.count = index.id.length;
    this.blocks = new Map();
  }

  link(row) {
    const run = this.number ? `&run=${this.number + 1}` : "";
    return `#q=${encodeURIComponent(this.index.id[row])}${run}`;
  }

  roleOf(row) {
    return this.index.roles[this.index.role[row]];
  }

  // The newest blocks are kept; a Map knows the order in which it was filled.
  block(name) {
    const kept = this.blocks.get(name) ?? unpack(`browse-${this.number}-${name}`);
    this.blocks.delete(name);
    this.blocks.set(name, kept);
    kept.catch(() => this.blocks.delete(name));
    if (this.blocks.size > KEPT_BLOCKS) this.blocks.delete(this.blocks.keys().next().value);
    return kept;
  }

  async text(packed) {
    if (typeof packed !== "number") return packed;
    const at = blockOf(this.index.table, packed);
    return (await this.block(`table-${at}`))[packed - this.index.table[at]];
  }

  texts(packed) {
    return Promise.all(packed.map((one) => this.text(one)));
  }

  async row(number) {
    const at = blockOf(this.index.starts, number);
    const row = (await this.block(`rows-${at}`))[number - this.index.starts[at]];
    const [language, question, references, raw, description, answers, reasons] = row;
    return {
      language,
      question: await this.text(question),
      references: await this.texts(references),
      raw: await this.text(raw),
      description: await this.text(description),
      answers: await this.texts(answers),
      reasons: await Promise.all(reasons.map((some) => this.texts(some))),
    };
  }

  // Which words each text of the table holds, as bits.
  async tableBits(sought) {
    const bits = [];
    for (let at = 0; at < this.index.table.length; at++) {
      for (const text of await unpack(`browse-${this.number}-table-${at}`)) bits.push(bitsOf(text, sought));
      await pause(0);
    }
    return bits;
  }

  // Marks the rows that hold all words in `hits`, and tells how many rows it has looked through after each block.
  // Descriptions are left out: each would find all rows of its role.
  async *search(query, hits) {
    const sought = words(query).slice(0, 30);
    const all = 2 ** sought.length - 1;
    const table = await this.tableBits(sought);
    const bits = (packed) => {
      if (typeof packed === "number") return table[packed];
      return packed === null ? 0 : bitsOf(packed, sought);
    };
    for (let at = 0; at < this.index.starts.length; at++) {
      const block = await unpack(`browse-${this.number}-rows-${at}`);
      block.forEach(([, question, references, raw, , answers, reasons], place) => {
        const row = this.index.starts[at] + place;
        let found = bitsOf(this.index.id[row], sought);
        for (const packed of [question, raw, ...references, ...answers, ...reasons.flat()]) found |= bits(packed);
        hits[row] = found === all ? 1 : 0;
      });
      await pause(0);
      yield this.index.starts[at] + block.length;
    }
  }
}

function bitsOf(text, sought) {
  const within = folded(text);
  let bits = 0;
  sought.forEach((word, at) => {
    if (within.includes(word)) bits |= 1 << at;
  });
  return bits;
}

async function readParts() {
  const found = [];
  for (let number = 0; document.getElementById(`browse-${number}-index`); number++) {
    found.push(new Part(number, await unpack(`browse-${number}-index`)));
  }
  return found;
}
