"""The messages of a session, with the size of the largest."""

from __future__ import annotations

from google.protobuf.message import Message

from ...wire import secure_pb2 as pb

#: From devices to the coordinator, and back.
UP: tuple[type[Message], ...] = (pb.KeyBundle, pb.SealedShares, pb.Consent, pb.UnmaskShares)
DOWN: tuple[type[Message], ...] = (pb.Cohort, pb.Delivery, pb.Survivors, pb.UnmaskRequest)

#: The largest message down is a Cohort: 40 KiB of leaves and numbers, the bundles of 255 neighbours
#: with certificates of 2 KiB, and their proofs of up to 200 KiB in a log of 2^32 certificates. The
#: largest up are SealedShares for as many, 23 KiB: less than links take.
DOWN_BYTES_MAX = 1024 * 1024
