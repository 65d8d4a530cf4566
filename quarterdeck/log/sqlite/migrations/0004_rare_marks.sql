-- Whether an event is of a rare type is noted with it. To ask SQLite whether its type is one of ten, which the two indexes
-- did, cost more than twice as much as the rest of its row.

ALTER TABLE event ADD COLUMN is_rare INTEGER CHECK (is_rare = 1);

UPDATE event SET is_rare = 1 WHERE type IN (
    'command_receipt', 'owner_changed', 'process_exited', 'process_starting', 'session_archived', 'session_failed',
    'session_opened', 'session_resumed', 'session_suspended', 'view_refolded'
);

DROP INDEX event_rare;
DROP INDEX event_rare_all;
CREATE INDEX event_rare ON event (session, type, position) WHERE is_rare = 1;
CREATE INDEX event_rare_all ON event (type) WHERE is_rare = 1;
