-- The one-time migration of a session table from five states to four. Sessions do not complete: one that did can go on.
-- Only rows in a former status are touched, so running it again changes nothing.

UPDATE AgentSession
SET status = CASE status WHEN 'completed' THEN 'active' WHEN 'cancelled' THEN 'archived' END
WHERE status IN ('completed', 'cancelled');
