"""What sessions changed in their repositories: `git` runs it, `shadow` keeps snapshots, `diff` reads what git says of two of
them, `watch` takes them at the right moments."""
