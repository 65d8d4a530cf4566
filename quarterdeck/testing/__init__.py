"""Conformance suites and scripted stand-ins for people who write a log adapter, a harness, a tool or a provider."""
