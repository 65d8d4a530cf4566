"""Search a model of the whole product exhaustively.

One session is modelled with everything around it: the agent, its calls, sub-agents and background work (agent.py,
children.py), the deck with its processes (deck.py), and the user with their commands (person.py). The actual
situation is a Truth (truth.py). Each possible step is a Move: what happens, the events that report it, and the truth
after it. The events go through the real log invariants (kernel/log_invariants.py) into the real fold
(kernel/view.py). After each move the view is compared with the truth and with the rules (invariants.py and
tests/support/state_table.py).

search.py follows every move from the empty session, breadth first, so that it reports the shortest path to a broken
rule. It ends when it finds nothing new. The bounds limit how many calls, sub-agents and queued messages there may be.

    python -m tests.model                     what `make test` searches
    python -m tests.model --calls 3 --texts 2
    python -m tests.model --depth 9           every path of nine moves, regardless of the other bounds

To learn how the system behaves, start with truth.py and agent.py.
"""
