-- For operators' pages: the messages that were tried and not handled, however many were handled. Every process can do
-- without: its pages then look at each message.
CREATE INDEX IF NOT EXISTS semel_inbox_open ON semel_inbox (consumer, message_id) WHERE handled_at IS NULL;
