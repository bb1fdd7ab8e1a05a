'use strict';
// The shop of shop.toml for Node: an effect is a line in a file, and headers say how it answers.

const crypto = require('node:crypto');
const fs = require('node:fs');
const path = require('node:path');

const [store, port, folder] = process.argv.slice(2);
const book = path.join(folder, 'effects.log');
fs.closeSync(fs.openSync(book, 'a'));

// The refusal of a request, as [status, document]; null where it is accepted.
function refusal(wanted) {
  const good = wanted && typeof wanted === 'object' && Number.isFinite(wanted.count) && wanted.count >= 1;
  return good ? null : [422, { error: 'count must be a number above 0' }];
}

async function effect(headers) {
  fs.appendFileSync(book, 'effect\n');
  await new Promise((done) => setTimeout(done, Number(headers['x-delay'] || 0)));
}

function text(kind) {
  return 'x'.repeat({ large: 100000, huge: 3000000 }[kind] || 0);
}

// Says where it listens, and ends with its parent.
function announce(server) {
  process.stdout.write(`${JSON.stringify({ port: server.address().port })}\n`);
  process.stdin.resume();
  process.stdin.on('end', () => process.exit(0));
}

module.exports = { store, port: Number(port), refusal, effect, text, announce, id: () => crypto.randomUUID() };
