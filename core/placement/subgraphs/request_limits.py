"""What a node takes from another that runs parts with it, as numbers.

How large a request or a reply may be is known from the cut; these bound it from above, and hold
before there is a cut. A peer that exceeds one is refused before anything is allocated.
"""

from __future__ import annotations

from ...node.net.message_limits import KIB, MIB

#: Content of a chunk, and padding of a probe.
CHUNK_BYTES_MAX = 64 * KIB
#: A smaller chunk costs more than it carries.
CHUNK_BYTES_MIN = 4 * KIB
#: A chunk is at most what its link carries in so long, so that others get their turn.
CHUNK_S = 0.005
#: An encoded cut: a byte or two for each operation.
CUT_BYTES_MAX = 64 * KIB
#: A frame with its largest content, names and numbers.
FRAME_BYTES_MAX = CHUNK_BYTES_MAX + 4 * KIB
#: An encoded request or reply; one image of 2,048 by 2,048 pixels in f32 is 48 MiB.
MESSAGE_BYTES_MAX = 64 * MIB
#: What a message has in addition to its tensors' contents: per tensor, and in all.
TENSOR_BYTES_FLAT = 256
MESSAGE_BYTES_FLAT = 256
#: Tensors of a message.
TENSORS_MAX = 4096
#: Unfinished and unanswered messages of one peer, and of all of them.
HELD_BYTES_PER_PEER = 128 * MIB
HELD_BYTES_MAX = 1024 * MIB
#: Cuts that one peer has open, over all its streams.
SESSIONS_PER_PEER = 64
#: Cuts that are made ready for one peer: so many at once, and so many a second from then on.
#: Compiling one takes seconds.
PREPARES_BURST, PREPARES_PER_S = 64, 0.1
#: No answer is of use for longer, whatever its asker says.
TIME_S_MAX = 600.0
#: What was sent is said to be taken within so long, and a message that has begun ends within so
#: long; else the stream is ended. The slower one is 64 MiB at 1.8 Mbit/s.
TAKEN_S, MESSAGE_S = 60.0, 300.0
#: Requests of one peer that are not answered yet.
REQUESTS_PER_PEER = 64
#: Streams at once, over all peers and of one: an agent and a few programs of its owner's.
STREAMS_MAX = 2_048
STREAMS_PER_PEER = 4
#: Messages that wait to be sent on one stream before it is ended.
MESSAGES_MAX = 1_024
#: Frames of control (all but chunks) that wait for a slow reader before its stream is ended.
CONTROL_MAX = 1_024
#: Frames that break the rules before their stream is ended.
VIOLATIONS_MAX = 16
#: Frames that one peer may send: so many at once, and so many a second from then on. At 4 KiB a
#: chunk the second is 64 MiB/s; faster links have larger chunks.
FRAMES_BURST = 20_000
FRAMES_PER_S = 16_000.0
#: Longest reason for people.
REASON_CHARS_MAX = 200
