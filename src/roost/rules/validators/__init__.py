"""Hard rules on machines: each says whether a machine may take the VM, and why not."""
