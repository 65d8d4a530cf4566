"""The whole product, small enough to be searched to its end.

One session is modelled with everything around it: the agent, its calls, its sub-agents and background work (agent.py,
children.py), the deck with its processes (deck.py), and the person with their commands (person.py). What is really the case
is a Truth (truth.py). Each possible step is a Move: what happens, the batch of events that tells it, and the truth after it.
The batches go through the real door (kernel.order) into the real fold (kernel.view), and after every batch what the view
shows is held against the truth and against the rules (invariants.py, and tests/table.py).

search.py goes from the empty session through every move there is, breadth first, so that the way to a broken rule is the
shortest one; it ends when nothing new is found. The bounds say how many calls, sub-agents and waiting texts there may be.

    python -m tests.model                     what `make test` searches
    python -m tests.model --calls 3 --texts 2
    python -m tests.model --depth 9           every way of nine batches, whatever the bounds leave

To find out how the system behaves, start reading at truth.py and agent.py.
"""
