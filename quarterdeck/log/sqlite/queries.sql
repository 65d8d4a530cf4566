-- name: take_epoch
-- The next owner of the store.
UPDATE meta SET value = value + 1 WHERE key = 'epoch' RETURNING value;

-- name: epoch
-- Checked once in each transaction: has another process overtaken us?
SELECT value FROM meta WHERE key = 'epoch';

-- name: probe
-- Another value each time: SQLite does not write a page whose bytes stay the same.
INSERT INTO meta (key, value) VALUES ('probe', 1) ON CONFLICT (key) DO UPDATE SET value = value + 1 RETURNING value;

-- name: probed
SELECT value FROM meta WHERE key = 'probe';

-- name: last_cursor
-- The newest cursor, whether of an event or of a delta that is still kept.
SELECT max(
    coalesce((SELECT max(cursor) FROM event), 0),
    coalesce((SELECT max(cursor) FROM delta), 0),
    coalesce((SELECT max(cursor) FROM tombstone), 0),
    coalesce((SELECT value FROM meta WHERE key = 'cursor'), 0)
);

-- name: keep_cursor
-- Cursors never come again, also when the newest events were deltas that have been dropped.
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
-- The packs that may hold a cursor above the first and below the second: a pack reaches up to the next one.
SELECT cursor, pieces FROM delta
WHERE cursor >= coalesce((SELECT max(cursor) FROM delta WHERE cursor <= ?), 0) AND cursor < ? ORDER BY cursor;

-- name: cursor_at
-- Cursors rise with the index: what comes after this index has a later one.
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
-- For a last event that is a delta, which has no row of its own and will be dropped.
UPDATE session SET last_index = ? WHERE number = ?;

-- name: settle_indexes
-- From time to time, so that few events are looked at for the last index of a session (migration 0003).
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
-- {rare} are the rare types.
SELECT cursor FROM event WHERE (is_rare IS NOT NULL) <> (type IN ({rare}));

-- name: count_events
SELECT count(*) FROM event;

-- name: read_session
-- {types} is nothing or a condition on the event's type; {is_rare} another one, where all of these are rare; {index} the
-- one to use then, which SQLite does not find for several types.
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
