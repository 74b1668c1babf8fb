"""Where the operations of a program run: device, edge or cloud. Costs, the cut, its parts."""
