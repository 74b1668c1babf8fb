"""The packed format: blocks of rows as .npy members of an uncompressed zip, with checksums.

Why no other: Arrow IPC has no checksums, ArrayRecord has and both need a package that a device's
base installation lacks (pyarrow 54 MB, array_record 4 MB without wheels for small ARM boards); a
WebDataset tar has no index, and checksums of its headers alone; a folder of .npy files has no
checksums and is not one file. An uncompressed zip of .npy blocks needs NumPy and zlib, and is an
.npz: its directory is the index, each member has a CRC-32, sizes stand in front of the members too,
so that a torn file gives up what lies before the tear, and `numpy.load` and `unzip -t` read it.
"""
