-- name: take_epoch
-- Take the next epoch: this process owns the store from now on.
UPDATE meta SET value = value + 1 WHERE key = 'epoch' RETURNING value;

-- name: epoch
-- Compare with the epoch of this process: a higher one means that another process owns the store.
SELECT value FROM meta WHERE key = 'epoch';

-- name: probe
-- Use another value each time, because SQLite doesn't write a page whose bytes didn't change.
INSERT INTO meta (key, value) VALUES ('probe', 1) ON CONFLICT (key) DO UPDATE SET value = value + 1 RETURNING value;

-- name: probed
SELECT value FROM meta WHERE key = 'probe';

-- name: last_cursor
-- The newest cursor of any event, delta or deletion.
SELECT max(
    coalesce((SELECT max(cursor) FROM event), 0),
    coalesce((SELECT max(cursor) FROM delta), 0),
    coalesce((SELECT max(cursor) FROM tombstone), 0),
    coalesce((SELECT value FROM meta WHERE key = 'cursor'), 0)
);

-- name: keep_cursor
-- Remember the newest cursor when its delta is dropped, so that it is never used again.
INSERT INTO meta (key, value) VALUES ('cursor', ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: insert_event
INSERT INTO event (cursor, session, position, at, origin, type, body, is_rare) VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_delta
INSERT INTO delta (cursor, pieces) VALUES (?, ?);

-- name: delete_delta
DELETE FROM delta WHERE cursor = ?;

-- name: update_delta
UPDATE delta SET pieces = ? WHERE cursor = ?;

-- name: delta
SELECT pieces FROM delta WHERE cursor = ?;

-- name: deltas
SELECT cursor, pieces FROM delta ORDER BY cursor;

-- name: deltas_between
-- Packs that may hold cursors above the first value and below the second. A pack reaches up to the next pack.
SELECT cursor, pieces FROM delta
WHERE cursor >= coalesce((SELECT max(cursor) FROM delta WHERE cursor <= ?), 0) AND cursor < ? ORDER BY cursor;

-- name: cursor_at
-- The cursor of a session's last event up to an index. Cursors rise with the index, so all later events are above it.
SELECT coalesce(max(cursor), 0) FROM event
WHERE cursor = (SELECT cursor FROM event WHERE session = ? AND position <= ? ORDER BY position DESC LIMIT 1);

-- name: insert_session
INSERT INTO session (
    id, agent, agent_version, cwd, repo, name, status, end_reason, supports_resume, resume_data, pinned,
    created_at, last_active_at, last_gate, last_index, view, view_index
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING number;

-- name: update_row
UPDATE session SET
    agent = ?, agent_version = ?, cwd = ?, repo = ?, name = ?, status = ?, end_reason = ?, supports_resume = ?,
    resume_data = ?, pinned = ?, created_at = ?, last_active_at = ?, last_gate = ?
WHERE number = ?;

-- name: update_view
UPDATE session SET last_index = ?, view = ?, view_index = ? WHERE number = ?;

-- name: update_index
-- Needed if the last event is a delta, which has no row of its own and can be dropped.
UPDATE session SET last_index = ? WHERE number = ?;

-- name: settle_indexes
-- Run from time to time, so that finding a session's last index needs only the events after `settled` (migration 0003).
UPDATE session SET last_index = newest.position
FROM (
    SELECT session, max(position) AS position FROM event
    WHERE cursor > (SELECT value FROM meta WHERE key = 'settled') GROUP BY session
) AS newest
WHERE number = newest.session AND last_index < newest.position;

-- name: settle_cursor
UPDATE meta SET value = (SELECT coalesce(max(cursor), 0) FROM event) WHERE key = 'settled' RETURNING value;

-- name: place_of_session
SELECT number, max(last_index, coalesce((SELECT max(position) FROM event WHERE event.session = number), 0))
FROM session WHERE id = ?;

-- name: sessions
SELECT
    id, agent, agent_version, cwd, repo, name, status, end_reason, supports_resume, resume_data, pinned,
    created_at, last_active_at, last_gate, max(last_index, coalesce(newest.position, 0)), view, view_index
FROM session LEFT JOIN (
    SELECT session, max(position) AS position FROM event
    WHERE cursor > (SELECT value FROM meta WHERE key = 'settled') GROUP BY session
) AS newest ON newest.session = number
ORDER BY number;

-- name: session
SELECT
    id, agent, agent_version, cwd, repo, name, status, end_reason, supports_resume, resume_data, pinned,
    created_at, last_active_at, last_gate,
    max(last_index, coalesce((SELECT max(position) FROM event WHERE event.session = number), 0)),
    view, view_index
FROM session WHERE id = ?;

-- name: session_ids
SELECT number, id FROM session;

-- name: last_indexes
SELECT number, max(last_index, coalesce((SELECT max(position) FROM event WHERE event.session = number), 0))
FROM session;

-- name: count_sessions
SELECT count(*) FROM session;

-- name: wrongly_marked
-- {rare} is the list of rare types.
SELECT cursor FROM event WHERE (is_rare IS NOT NULL) <> (type IN ({rare}));

-- name: count_events
SELECT count(*) FROM event;

-- name: read_session
-- {types} is empty or a condition on the event's type. If all types are rare, {is_rare} is a condition and {index} names the
-- index, because SQLite doesn't choose it by itself for several types.
SELECT cursor, position, at, origin, body FROM event {index} WHERE session = ? AND position > ? {types} {is_rare}
ORDER BY position LIMIT ?;

-- name: read_all
SELECT event.cursor, session.id, position, at, origin, body FROM event JOIN session ON session.number = event.session
WHERE event.cursor > ? {types} {is_rare} ORDER BY event.cursor LIMIT ?;

-- name: read_tombstones
SELECT cursor, id, position, at, origin, body FROM tombstone WHERE cursor > ? {types} ORDER BY cursor LIMIT ?;

-- name: insert_tombstone
INSERT INTO tombstone (cursor, id, position, at, origin, type, body) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: delete_session
DELETE FROM session WHERE number = ?;
