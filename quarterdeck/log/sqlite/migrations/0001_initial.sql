-- The truth is `event` (and `delta` while texts are growing). `session` holds the catalogue and the small views:
-- a cache of the fold, written in the same transaction as the events that changed it, and rebuildable from them.

CREATE TABLE meta (
    key TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT;

-- Every process that opens the store for writing takes the next epoch; one that has been overtaken is fenced off.
INSERT INTO meta (key, value) VALUES ('epoch', 0);

CREATE TABLE session (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE CHECK (id <> ''),
    agent TEXT NOT NULL,
    agent_version TEXT NOT NULL DEFAULT '',
    cwd TEXT NOT NULL DEFAULT '',
    repo TEXT NOT NULL DEFAULT '',
    name TEXT NOT NULL DEFAULT '',
    status TEXT NOT NULL CHECK (status IN ('active', 'suspended', 'archived', 'error')),
    end_reason TEXT CHECK (end_reason IS NULL OR status = 'archived'),
    supports_resume INTEGER NOT NULL DEFAULT 0 CHECK (supports_resume IN (0, 1)),
    resume_data TEXT,
    pinned INTEGER NOT NULL DEFAULT 0 CHECK (pinned IN (0, 1)),
    created_at INTEGER NOT NULL CHECK (created_at >= 0),
    last_active_at INTEGER NOT NULL CHECK (last_active_at >= 0),
    last_index INTEGER NOT NULL CHECK (last_index >= 1),
    view BLOB NOT NULL,
    view_index INTEGER NOT NULL CHECK (view_index BETWEEN 1 AND last_index)
) STRICT;

CREATE INDEX session_status ON session (status);
CREATE INDEX session_newest ON session (created_at DESC, id DESC);

-- `cursor` orders all sessions; `position` is the event's index in its session (index is a word of SQL).
CREATE TABLE event (
    cursor INTEGER PRIMARY KEY,
    session INTEGER NOT NULL REFERENCES session (number) ON DELETE CASCADE,
    position INTEGER NOT NULL CHECK (position >= 1),
    at INTEGER NOT NULL CHECK (at >= 0),
    origin TEXT NOT NULL,
    type TEXT NOT NULL,
    body BLOB NOT NULL,
    UNIQUE (session, position)
) STRICT;

-- One row per commit group: the deltas of all sessions in it, packed. Dropped when the last one is restated.
CREATE TABLE delta (
    cursor INTEGER PRIMARY KEY,
    pieces BLOB NOT NULL
) STRICT;
