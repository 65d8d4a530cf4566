"""Track what sessions change in their git repositories, with snapshots in shadow repositories of the deck's own."""
