-- The reference service's own table, in Semel's database but none of Semel's business.

-- name: create_table
-- Safe to repeat at every start.
CREATE TABLE IF NOT EXISTS shop_order (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    caller TEXT NOT NULL,
    sku TEXT NOT NULL,
    quantity INTEGER NOT NULL
) STRICT;

-- name: create_index
-- For the lists of one caller.
CREATE INDEX IF NOT EXISTS shop_order_by_caller ON shop_order (caller, seq);

-- name: insert_order
-- Written by the handler, on the permit's connection.
INSERT INTO shop_order (id, caller, sku, quantity) VALUES (:id, :caller, :sku, :quantity);

-- name: list_orders
-- One caller's orders, in their order.
SELECT id, caller, sku, quantity FROM shop_order WHERE caller = :caller ORDER BY seq LIMIT :limit;
