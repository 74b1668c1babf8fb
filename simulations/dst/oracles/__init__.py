"""What must hold in the fault simulation, whatever goes wrong."""
