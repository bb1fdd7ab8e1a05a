// One key for each intent: made with the form, kept through retries and reloads, dropped when it is done.
// docs/browser.md explains it, semel.d.ts has the types.

const PREFIX = "semel:";
const DAY = 86400;
const PAUSE = 500; // milliseconds, doubled with each attempt
const PAUSE_MAX = 8000;
const LOOK_MAX = 30000;
const TIMER_MAX = 2 ** 31 - 1; // a longer one would end at once

const TEXTS = {
  open: "This was sent before. Send it again as it is to see the result; it happens once.",
  sending: "Sending…",
  waiting: "No answer yet. Trying again…",
  offline: "Offline. It is sent when the connection is back.",
  pending: "Accepted. Waiting…",
  done: "Done.",
  refused: "Refused.",
  unknown: "It is not known whether this happened. Do not enter it again.",
  notyet: "No answer yet. Send it again as it is; it happens once.",
  expired: "Sent too long ago. Check whether it happened before you enter it again.",
  changed: "Not sent: something else was sent before.",
};
const ASK = "Something else was sent before and may have happened. Send this as well?";

const inMemory = new Map();
const memory = {
  getItem: (name) => inMemory.get(name) ?? null,
  setItem: (name, text) => inMemory.set(name, text),
  removeItem: (name) => inMemory.delete(name),
};

function open(kind) {
  try {
    const found = kind === "memory" ? memory : kind === "session" ? sessionStorage : localStorage;
    found.setItem(PREFIX, "");
    found.removeItem(PREFIX);
    return found;
  } catch {
    return memory; // denied or full
  }
}

function read(storage, name) {
  try {
    const found = JSON.parse(storage.getItem(name));
    return typeof found?.key === "string" && found.key ? found : undefined;
  } catch {
    return undefined;
  }
}

function write(storage, name, record) {
  try {
    storage.setItem(name, JSON.stringify(record));
  } catch {
    memory.setItem(name, JSON.stringify(record));
  }
}

function drop(storage, name, key) {
  if (read(storage, name)?.key === key) storage.removeItem(name);
}

/** A UUID, version 4; crypto.randomUUID is missing without a secure context. */
export function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 15) | 64;
  bytes[8] = (bytes[8] & 63) | 128;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}

// Tells payloads apart; the server compares them itself. crypto.subtle is missing without a secure context.
function digest(text) {
  let a = 0xdeadbeef;
  let b = 0x41c6ce57;
  for (let at = 0; at < text.length; at++) {
    const code = text.charCodeAt(at);
    a = Math.imul(a ^ code, 2654435761);
    b = Math.imul(b ^ code, 1597334677);
  }
  a = Math.imul(a ^ (a >>> 16), 2246822507) ^ Math.imul(b ^ (b >>> 13), 3266489909);
  b = Math.imul(b ^ (b >>> 16), 2246822507) ^ Math.imul(a ^ (a >>> 13), 3266489909);
  return (b >>> 0).toString(36) + (a >>> 0).toString(36);
}

const blob = (value) => [value.name, value.size, value.type, value.lastModified];

function describe(body) {
  if (body == null || typeof body === "string") return body ?? "";
  if (body instanceof FormData) {
    return JSON.stringify([...body].map(([name, value]) => [name, typeof value === "string" ? value : blob(value)]));
  }
  if (body instanceof Blob) return JSON.stringify(blob(body));
  if (body instanceof Uint8Array || body instanceof ArrayBuffer) return String(new Uint8Array(body));
  if (body instanceof URLSearchParams) return String(body);
  throw new TypeError("semel: this body cannot be sent twice; give a string, FormData, URLSearchParams, Blob or bytes");
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, Math.min(ms, TIMER_MAX)));

const online = () => new Promise((resolve) => addEventListener("online", resolve, { once: true }));

function retryAfter(response) {
  const text = response?.headers.get("Retry-After");
  if (!text) return 0;
  const ms = /^\d+$/.test(text) ? text * 1000 : Date.parse(text) - Date.now();
  return ms > 0 ? ms : 0;
}

// Seconds, or a period such as P1DT12H; undefined where it is neither.
function seconds(text) {
  if (/^\d+$/.test(text)) return Number(text);
  const found = /^"?P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?"?$/.exec(text);
  const sum = (found ?? []).slice(1).reduce((all, part, at) => all + (part ?? 0) * [7 * DAY, DAY, 3600, 60, 1][at], 0);
  return sum || undefined;
}

// The status resource of an answer, of the same origin alone: a request to it carries the credentials.
function statusLink(response, url) {
  const found = /<([^>]*)>[^,<]*;\s*rel="?status\b/i.exec(response.headers.get("Link") ?? "");
  if (!found) return undefined;
  const base = new URL(url, location.href);
  const link = new URL(found[1], base);
  return link.origin === base.origin ? link.href : undefined;
}

async function json(response) {
  if (!/json/i.test(response.headers.get("Content-Type") ?? "")) return undefined;
  return response.clone().json().catch(() => undefined);
}

export class Intent {
  #options;
  #shared;
  #tab;
  #record;
  #running;

  constructor(name, options = {}) {
    if (typeof name !== "string" || !name) throw new TypeError("semel: an intent needs a name, such as checkout-42");
    this.name = name;
    this.report = { state: "ready" };
    this.#options = { seconds: 60, attemptSeconds: 30, lifetimeSeconds: DAY, ...options };
    this.#shared = open(options.storage ?? "local");
    this.#tab = open(options.storage ?? "session");
    this.persistent = this.#shared !== memory;
    this.ready = this.#make();
  }

  get key() {
    return this.#record?.key;
  }

  get sentAt() {
    return this.#record?.sentAt;
  }

  get isOpen() {
    return Boolean(this.#record?.sentAt && !this.#record.over);
  }

  isSame(url, init = {}) {
    return this.#record?.digest === this.#digest(url, init);
  }

  renew(key = newKey()) {
    this.#forget();
    this.#record = { key };
    this.#save();
    this.#tell({ state: "ready" });
  }

  fetch(url, init = {}) {
    this.#running ??= this.#send(url, init).finally(() => (this.#running = undefined));
    return this.#running;
  }

  async #make() {
    const name = PREFIX + this.name;
    const take = () => {
      const mine = read(this.#tab, name);
      const found = (mine?.sentAt && mine) || read(this.#shared, name) || read(memory, name) || this.#finished() || { key: this.#options.key ?? newKey() };
      this.#record = found;
      if (!found.over) this.#save();
    };
    try {
      await navigator.locks.request(name, take);
    } catch {
      take(); // no locks without a secure context
      await pause(50); // another tab's write is seen
      if (!this.#record.sentAt) this.#record = read(this.#shared, name) ?? this.#record;
    }
    this.#tell({ state: this.isOpen ? "open" : "ready" });
    return this;
  }

  // Back to a finished form: its key again, so that what is submitted again is a replay.
  #finished() {
    const [entry] = performance.getEntriesByType?.("navigation") ?? [];
    return entry?.type === "back_forward" ? read(this.#tab, `${PREFIX}done:${this.name}`) : undefined;
  }

  #save() {
    const name = PREFIX + this.name;
    const other = read(this.#shared, name);
    // Another tab has begun the next intent meanwhile: this one is kept beside it.
    const kept = other && other.key !== this.key ? this.#tab : this.#shared;
    write(kept, name, this.#record);
    this.persistent &&= read(kept, name)?.key === this.key; // false where the storage is full
  }

  #forget() {
    drop(this.#shared, PREFIX + this.name, this.key);
    drop(this.#tab, PREFIX + this.name, this.key);
    drop(memory, PREFIX + this.name, this.key);
  }

  #tell(report) {
    this.report = { name: this.name, key: this.key, persistent: this.persistent, replayed: false, ...report };
    this.#options.onState?.(this.report);
    return this.report;
  }

  // Over: nothing stays but the key, for the way back in this tab.
  #end(report) {
    this.#record.over = report.state;
    this.#forget();
    if (report.state === "done") write(this.#tab, `${PREFIX}done:${this.name}`, this.#record);
    return this.#tell(report);
  }

  #digest(url, init) {
    const body = typeof init.body === "function" ? init.body("") : init.body;
    return digest([init.method ?? "POST", new URL(url, location.href).href, describe(body)].join("\n"));
  }

  #isExpired() {
    const { sentAt, lifetime } = this.#record;
    return sentAt && Date.now() - sentAt > (lifetime ?? this.#options.lifetimeSeconds) * 1000;
  }

  async #send(url, init) {
    await this.ready;
    const payload = this.#digest(url, init);
    if (this.#record.digest && this.#record.digest !== payload) {
      const ask = this.#options.ask ?? ((text) => confirm(text));
      if (!this.#record.over && !(await ask(ASK))) return this.#tell({ state: "changed" });
      this.renew();
    }
    const record = this.#record;
    if (record.over === "refused") record.over = record.sentAt = undefined;
    let isLost = Boolean(record.sentAt);
    let isSettled = false;
    record.digest = payload;
    record.sentAt ??= Date.now();
    if (!record.over) this.#save(); // before the first byte leaves
    let ends = Date.now() + this.#options.seconds * 1000;
    for (let attempt = 1; ; attempt++) {
      if (navigator.onLine === false) {
        this.#tell({ state: "offline", attempt });
        await online();
        ends = Date.now() + this.#options.seconds * 1000;
      }
      if (this.#isExpired()) return this.#tell({ state: "expired", attempt });
      this.#tell({ state: "sending", attempt });
      let response;
      try {
        response = await this.#attempt(url, init);
      } catch (error) {
        if (init.signal?.aborted) throw error; // whoever sends has given up; the key stays
        isLost = true;
      }
      const found = response && (await this.#judge(response, url, isLost));
      if (found?.link) {
        const operation = await this.#watch(found, init);
        if (!operation) return this.report;
        if (operation.state === "FAILED_NOT_REPLAYABLE") return this.#tell({ state: "notyet", operation, attempt });
        if (!isSettled && /^(SUCCEEDED|FAILED_REPLAYABLE)$/.test(operation.state)) {
          isSettled = true;
          ends = Date.now() + this.#options.seconds * 1000;
          continue; // the same key brings the answer
        }
      } else if (found) return found.isOver ? this.#end({ attempt, ...found.report }) : this.#tell({ attempt, ...found.report });
      isLost ||= !response || response.status >= 500 || response.status === 409; // another attempt is running
      const wait = Math.max(retryAfter(response), Math.random() * Math.min(PAUSE_MAX, PAUSE * 2 ** attempt));
      if (Date.now() + wait > ends) return this.#tell({ state: "notyet", attempt, response });
      this.#tell({ state: "waiting", attempt, response, seconds: wait / 1000 });
      await pause(wait);
    }
  }

  async #attempt(url, init) {
    const controller = new AbortController();
    const stop = () => controller.abort();
    const timer = setTimeout(stop, this.#options.attemptSeconds * 1000);
    init.signal?.addEventListener("abort", stop, { once: true });
    try {
      const headers = new Headers(init.headers);
      headers.set("Idempotency-Key", this.key);
      const response = await (this.#options.fetch ?? fetch)(url, {
        cache: "no-store",
        ...init,
        method: init.method ?? "POST",
        body: typeof init.body === "function" ? init.body(this.key) : init.body,
        headers,
        redirect: this.#options.follow ? "follow" : "manual",
        signal: controller.signal,
      });
      await response.clone().arrayBuffer(); // half an answer is none
      return response;
    } finally {
      clearTimeout(timer);
      init.signal?.removeEventListener("abort", stop);
    }
  }

  // What an answer says of the command; undefined: send it again.
  async #judge(response, url, isLost) {
    const { status, headers } = response;
    const problem = response.ok ? undefined : await json(response);
    const code = headers.get("Semel-Code") ?? problem?.code;
    const replayed = /^true$/i.test(headers.get("Idempotency-Replayed") ?? headers.get("Idempotent-Replayed") ?? "");
    const report = { response, problem, code, replayed, status };
    const lifetime = seconds(headers.get("Idempotency-Key-Lifetime") ?? "");
    if (lifetime !== undefined) {
      this.#record.lifetime = lifetime;
      if (!this.#record.over) this.#save();
    }
    const link = statusLink(response, url);
    const over = (state) => ({ isOver: true, report: { ...report, state } });
    const not = (state) => ({ report: { ...report, state } });

    if (response.type === "opaqueredirect") return not("unknown");
    if (response.redirected) return response.ok && this.#options.follow(new URL(response.url)) ? over("done") : not("unknown");
    if (status === 202 && link && !replayed) return { link, report: { ...report, state: "pending" } };
    if (response.ok) return over("done");
    if (code === "IDEMPOTENCY_OUTCOME_UNKNOWN") return { link, ...not("unknown") };
    // A stored answer is final; a failure is a refusal only where the operation itself says for how long it holds.
    if (replayed) return status < 500 || lifetime !== undefined ? over("refused") : not("unknown");
    if (code === "IDEMPOTENCY_RESPONSE_NOT_REPLAYABLE") return over("done");
    if (code === "IDEMPOTENCY_RECORD_EXPIRED") return not("expired");
    if (code === "IDEMPOTENCY_RECORD_UNREADABLE") return not("unknown");
    if (code === "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST") return not("changed");
    if (problem?.retryable === true) return undefined;
    if (problem?.retryable !== false && [408, 425, 429, 502, 503, 504].includes(status)) return undefined;
    if (status >= 500) return link ? { link, ...not("unknown") } : not("notyet");
    // After a lost attempt only the operation's own word, or one about the request, says something about that attempt.
    const isBlind = /^(IDEMPOTENCY_(CALLER_UNKNOWN|CALLER_NOT_ALLOWED|OPERATION_NOT_DECLARED)|IMPORT_NOT_ALLOWED)$/.test(code);
    const isSure = lifetime !== undefined || problem?.keyAction || [400, 411, 413, 414, 415, 422, 431].includes(status);
    if (isLost && (isBlind || !isSure)) return not("notyet");
    return over("refused");
  }

  // Ask where the operation is until it is over. Undefined: the server does not know it (any more).
  async #watch({ link, report }, init) {
    const headers = new Headers(init.headers);
    headers.delete("Content-Type");
    let operation;
    for (let look = 1; ; look++) {
      this.#tell({ ...report, link, operation });
      let response;
      try {
        response = await fetch(link, { headers, credentials: init.credentials, mode: init.mode, cache: "no-store" });
        operation = response.ok ? await response.json() : operation;
        if (operation && !operation.running && operation.state !== "UNKNOWN") return operation;
      } catch {
        // no answer: look again
      }
      if (response && !response.ok && response.status < 500 && response.status !== 429) return undefined;
      await pause(Math.max(retryAfter(response), Math.min(LOOK_MAX, PAUSE * 2 ** look)));
    }
  }
}

export const intent = (name, options) => new Intent(name, options).ready;

export function protect(form, options = {}) {
  if (!(form instanceof HTMLFormElement)) throw new TypeError("semel: protect needs a form");
  const name = options.name ?? form.dataset.semel ?? (form.id || location.pathname);
  const field = form.querySelector(`input[name="${CSS.escape(options.field ?? "_key")}"]`);
  const slot = `${PREFIX}form:${name}`;
  const tab = open(options.storage ?? "session");
  let fields;
  const output = options.output ?? form.querySelector("[data-semel-status]");

  const show = (report) => {
    if (field && report.key) field.value = report.key;
    if (report.state === "sending" && options.keep) write(tab, slot, { key: report.key, fields });
    if (report.state === "done" || report.state === "refused") drop(tab, slot, report.key);
    form.dataset.semelState = report.state;
    const isBusy = /^(sending|waiting|offline|pending|unknown)$/.test(report.state);
    form.setAttribute("aria-busy", String(isBusy));
    for (const button of form.querySelectorAll("button:not([type=button]):not([type=reset]), input[type=submit]")) {
      button.setAttribute("aria-disabled", String(isBusy));
    }
    if (output) output.textContent = options.texts?.[report.state] ?? TEXTS[report.state] ?? "";
    form.dispatchEvent(new CustomEvent("semel", { bubbles: true, detail: report }));
    options.onState?.(report);
  };
  const kept = new Intent(name, { ...options, key: options.key ?? (field?.value || undefined), onState: show });

  // What was there at the click is sent, whatever is typed while it is under way.
  function command(submitter) {
    const data = new FormData(form);
    fields = [...data].filter(([, value]) => typeof value === "string");
    if (submitter?.name) data.append(submitter.name, submitter.value);
    const multipart = form.enctype === "multipart/form-data";
    const body = (key) => {
      if (field) data.set(field.name, key);
      if (!options.body) return multipart ? data : new URLSearchParams([...data].map(([name, value]) => [name, value.name ?? value]));
      const made = options.body(data);
      return Object.getPrototypeOf(made) === Object.prototype ? JSON.stringify(made) : made;
    };
    const headers = new Headers(options.headers);
    if (typeof body("") === "string" && !headers.has("Content-Type")) headers.set("Content-Type", "application/json");
    const url = submitter?.getAttribute("formaction") ?? form.getAttribute("action") ?? location.href;
    return [url, { credentials: options.credentials, headers, body }];
  }

  async function submit(submitter) {
    await kept.ready;
    if (kept.report.state === "unknown") return kept.report; // nobody is helped by a second attempt
    return kept.fetch(...command(submitter));
  }

  const onSubmit = (event) => {
    event.preventDefault();
    submit(event.submitter);
  };
  form.addEventListener("submit", onSubmit);

  // Reloaded while it was under way: the same form again brings the first result.
  const begin = async () => {
    await kept.ready;
    if (kept.report.state === "ready") show(kept.report);
    const found = kept.report.state === "open" && read(tab, slot);
    for (const [name, value] of (found?.key === kept.key && found.fields) || []) {
      const input = form.elements.namedItem(name);
      if (input?.type === "checkbox") input.checked = true;
      else if (input) input.value = value;
    }
    const age = (Date.now() - kept.sentAt) / 1000;
    if (kept.isOpen && age < (options.resumeSeconds ?? 300) && kept.isSame(...command())) await submit();
  };
  if (document.readyState === "complete") begin();
  else addEventListener("load", () => setTimeout(begin), { once: true }); // after the browser has filled in the form

  return { intent: kept, submit, stop: () => form.removeEventListener("submit", onSubmit) };
}
