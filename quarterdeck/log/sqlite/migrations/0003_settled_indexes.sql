-- A session's last index is no longer written with every append: one page less to make durable. Up to the cursor that is
-- kept here `session.last_index` is right; after it, the events themselves say how far a session is.

UPDATE session SET last_index = max(
    last_index, coalesce((SELECT max(position) FROM event WHERE event.session = session.number), 0)
);

INSERT OR REPLACE INTO meta (key, value) VALUES ('settled', (SELECT coalesce(max(cursor), 0) FROM event));
