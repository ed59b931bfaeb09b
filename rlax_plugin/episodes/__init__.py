"""Episodes: from the first answers to a prompt to scored episodes of one or several turns."""
