-- Gates are numbered over all sessions (g7). The highest number that a session used stays with it, so that a start need
-- not read old events to find the next free one. What was asked before this version is found in the events here, once.

ALTER TABLE session ADD COLUMN last_gate INTEGER NOT NULL DEFAULT 0 CHECK (last_gate >= 0);

WITH gate AS (
    SELECT
        session,
        coalesce(CAST(body AS TEXT) ->> '$.gate.gate_id', CAST(body AS TEXT) ->> '$.gate_id') AS id
    FROM event
    WHERE type IN ('approval_required', 'ask_user', 'dialog_required')
)
UPDATE session SET last_gate = (
    SELECT coalesce(max(CAST(substr(gate.id, 2) AS INTEGER)), 0) FROM gate
    WHERE gate.session = session.number AND gate.id GLOB 'g[0-9]*' AND substr(gate.id, 2) NOT GLOB '*[^0-9]*'
);

-- The last word about a session that was deleted. Its events are gone; this stays on the stream of all sessions, so that
-- a reader who comes back learns of the deletion.

CREATE TABLE tombstone (
    cursor INTEGER PRIMARY KEY,
    id TEXT NOT NULL CHECK (id <> ''),
    position INTEGER NOT NULL CHECK (position >= 1),
    at INTEGER NOT NULL CHECK (at >= 0),
    origin TEXT NOT NULL,
    type TEXT NOT NULL,
    body BLOB NOT NULL
) STRICT;

-- What is looked for in long sessions and stands there a few times only: receipts, launches, the marks of a lifecycle.
-- An index over all types costs each event half as much again, and in large commits twice; these two cost only the rare ones.
-- `sql.RARE` is the same list: SQLite takes a partial index only for a query that repeats its condition.

CREATE INDEX event_rare ON event (session, type, position) WHERE type IN (
    'command_receipt', 'owner_changed', 'process_exited', 'process_starting', 'session_archived', 'session_failed',
    'session_opened', 'session_resumed', 'session_suspended', 'view_refolded'
);

CREATE INDEX event_rare_all ON event (type) WHERE type IN (
    'command_receipt', 'owner_changed', 'process_exited', 'process_starting', 'session_archived', 'session_failed',
    'session_opened', 'session_resumed', 'session_suspended', 'view_refolded'
);
