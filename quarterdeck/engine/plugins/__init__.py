"""What can come between the steps of a turn, one file each."""
