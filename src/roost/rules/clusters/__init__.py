"""Rules that choose clusters: which may take the VM, and which are looked at first."""
