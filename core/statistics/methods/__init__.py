"""The methods: one file each, with what sites add up and what is made of the totals."""
