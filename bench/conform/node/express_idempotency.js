'use strict';
// express-idempotency, in memory or on Redis, as its README shows.

const express = require('express');
const idempotency = require('express-idempotency');
const shop = require('./shop');

async function main() {
  const options = {};
  if (shop.store.startsWith('redis://')) {
    const RedisAdapter = require('express-idempotency-redis-adapter').default;
    options.dataAdapter = new RedisAdapter({ connectionConfig: { url: shop.store } });
    await options.dataAdapter.connect();
  }
  const app = express();
  app.use(express.json({ limit: '30mb' }));
  app.post('*', idempotency.idempotency(options));
  for (const path of ['/orders', '/refunds']) {
    app.post(path, async (request, response, next) => {
      const service = idempotency.getSharedIdempotencyService();
      if (service.isHit(request)) return;
      try {
        const refused = shop.refusal(request.body);
        if (refused) {
          response.status(refused[0]).json(refused[1]);
          return;
        }
        await shop.effect(request.headers);
        answer(request.headers['x-reply'] || 'json', path, response);
      } catch (error) {
        service.reportError(request);
        next(error);
      }
    });
  }
  const server = app.listen(shop.port, '127.0.0.1', () => shop.announce(server));
}

function answer(kind, path, response) {
  const number = shop.id();
  response.set('Location', `${path}/${number}`);
  if (kind === 'empty') response.status(204).send();
  else if (kind === 'error') response.status(500).json({ error: 'out of luck' });
  else if (kind === 'binary') {
    const bytes = Buffer.concat([Buffer.from(Array.from({ length: 256 }, (_, byte) => byte)), Buffer.from(number)]);
    response.status(201).type('application/octet-stream').send(bytes);
  } else if (kind === 'stream') {
    response.status(201).type('text/plain');
    for (const piece of [number, '\nand', '\nmore\n']) response.write(piece);
    response.end();
  } else response.status(201).json({ id: number, text: shop.text(kind) });
}

main();
