"""Provide helpers that tests share: decks, servers, agents, terminals and scripted stand-ins."""
