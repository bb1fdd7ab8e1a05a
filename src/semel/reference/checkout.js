// The page at /: one form whose submission is one intent, with troubles to choose, and the provider's ledger beside it.
import { protect } from "../semel/semel.js";

const AUTHORIZATION = { Authorization: "Bearer alice" };
const SHOWN = 8;
const LOOK_MS = 1500;
const find = (id) => document.getElementById(id);
const form = find("pay");
let losses = 0;

const simulated = { slow: { delayMs: 3000 }, timeout: { fail: "timeout" }, crash: { crash: "after" } };

// "the first answer is lost": the server has worked, and the browser never hears of it.
async function lossy(url, init) {
  const response = await fetch(url, init);
  if (losses > 0) {
    losses -= 1;
    throw new TypeError("the answer was lost");
  }
  return response;
}

async function explain(report) {
  const { state, code, status, problem, link } = report;
  if (state === "done" && report.response?.bodyUsed === false) {
    const payment = await report.response.json().catch(() => ({})); // what an operator has settled may have no body
    return `${payment.paymentId ?? "It happened:"} ${report.replayed ? "(the first answer, replayed)" : "(a first answer)"}`;
  }
  if (state === "waiting") return `${status ?? "no answer"}; again in ${report.seconds.toFixed(1)} s`;
  if (state === "unknown") return `${code ?? status}. Where it is: ${link ?? "the server does not say"}`;
  if (state === "refused") return problem?.detail && typeof problem.detail === "string" ? problem.detail : `${status}`;
  return "";
}

const payment = protect(form, {
  keep: true, // so that a reload while it is under way shows the result; not for card numbers
  headers: AUTHORIZATION,
  body: (data) => {
    const { customerId, amount, trouble } = Object.fromEntries(data);
    const body = { customerId, amount, currency: "EUR" };
    if (simulated[trouble]) body.simulate = simulated[trouble];
    return body;
  },
  fetch: lossy,
  onState: async (report) => {
    find("key").textContent = report.key + (report.persistent ? "" : " (kept in memory alone: this browser denies storage, or it is full)");
    if (report.attempt) find("attempts").textContent = report.attempt;
    find("another").hidden = !["done", "refused", "expired"].includes(report.state);
    find("detail").textContent = await explain(report);
    if (report.state !== "sending") look();
  },
});

form.addEventListener("submit", () => {
  losses = form.elements.trouble.value === "lost" && payment.intent.report.state !== "done" ? 1 : losses;
});
find("another").addEventListener("click", () => {
  payment.intent.renew();
  find("attempts").textContent = "none yet";
  form.elements.customerId.focus();
});

let last = "";
async function look() {
  try {
    const response = await fetch("payments", { headers: AUTHORIZATION, cache: "no-store" });
    if (!response.ok) return;
    const text = await response.text();
    if (text === last) return;
    last = text;
    const charges = JSON.parse(text);
    find("count").textContent = charges.length === 1 ? "1 charge" : `${charges.length} charges`;
    find("effects").replaceChildren(
      ...charges.slice(-SHOWN).reverse().map((charge, at) => {
        const item = document.createElement("li");
        item.value = charges.length - at;
        item.textContent = `${charge.amount} ${charge.currency} from ${charge.customerId}: ${charge.paymentId}`;
        return item;
      }),
    );
  } catch {
    // the server is away: the next look shows it
  }
}

look();
setInterval(() => document.hidden || look(), LOOK_MS);
