-- For operators' pages: the messages that were tried and not handled, however many were handled. Every process can do
-- without: its pages then look at each message.
-- InnoDB adds the primary key to each entry, so that those without a time come in its order.
CREATE INDEX IF NOT EXISTS semel_inbox_open ON semel_inbox (handled_at);
