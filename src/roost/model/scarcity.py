"""How scarce each resource usually is: what the packing of machines is weighed by, unless somebody knows better."""

SCARCITY = {"cores": 1.0, "memory": 0.8, "disk": 0.1, "ssd": 0.4, "nic": 0.2}
