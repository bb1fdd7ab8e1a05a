'use strict';
// @node-idempotency/nestjs, in memory or on Redis, as its README shows; decorators are applied by hand.

require('reflect-metadata');
const { Body, Controller, Headers, HttpException, Module, Post } = require('@nestjs/common');
const { NestFactory } = require('@nestjs/core');
const { Idempotent, NodeIdempotencyModule } = require('@node-idempotency/nestjs');
const { StorageAdapterEnum } = require('@node-idempotency/shared');
const shop = require('./shop');

class Orders {
  async order(body, headers) {
    const refused = shop.refusal(body);
    if (refused) throw new HttpException(refused[1], refused[0]);
    await shop.effect(headers);
    const kind = headers['x-reply'] || 'json';
    if (kind === 'error') throw new HttpException({ error: 'out of luck' }, 500);
    return { id: shop.id(), text: shop.text(kind) };
  }

  async refund(body, headers) {
    return this.order(body, headers);
  }
}

function declare(name, path) {
  const descriptor = Object.getOwnPropertyDescriptor(Orders.prototype, name);
  Body()(Orders.prototype, name, 0);
  Headers()(Orders.prototype, name, 1);
  Reflect.decorate([Idempotent({}), Post(path)], Orders.prototype, name, descriptor);
}

declare('order', 'orders');
declare('refund', 'refunds');
Controller()(Orders);

class App {}
const storage = shop.store.startsWith('redis://')
  ? { adapter: StorageAdapterEnum.redis, options: { url: shop.store } }
  : { adapter: StorageAdapterEnum.memory };
Module({ imports: [NodeIdempotencyModule.forRootAsync({ storage })], controllers: [Orders] })(App);

async function main() {
  const app = await NestFactory.create(App, { logger: false, bodyParser: false });
  app.use(require('express').json({ limit: '30mb' }));
  await app.listen(shop.port, '127.0.0.1');
  shop.announce(app.getHttpServer());
}

main();
