"""What is relied on in MaxText and JetStream as they are: signatures, imports, compatibility."""
