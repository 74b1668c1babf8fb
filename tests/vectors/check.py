"""Checks transcripts of secure aggregation without Delian: a second implementation, on its own.

    python check.py secagg/*.json

Needs Python and `cryptography`, and nothing of the project. From a transcript's task, masters,
signing keys and rule for the updates it computes everything else again as
docs/secure_aggregation.md says, and compares every value that the file holds. Slow, and simple.
"""

import hashlib
import hmac
import json
import struct
import sys
from fractions import Fraction
from math import ceil, comb, floor
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES, ChaCha20
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat


def same(what, found, expected):
    if isinstance(found, bytes):
        found = found.hex()
    if found != expected:
        raise SystemExit(f"{what}: computed {str(found)[:80]}, the file has {str(expected)[:80]}")


def sha(data):
    return hashlib.sha256(data).digest()


def hkdf(secret, info):
    """RFC 5869 with no salt, 32 bytes."""
    return hmac.digest(hmac.digest(bytes(32), secret, "sha256"), info + b"\x01", "sha256")


def u32(number):
    return struct.pack("<I", number)


def u64(number):
    return struct.pack("<Q", number)


def f64(number):
    return struct.pack("<d", number)


def var(data):
    return u32(len(data)) + data


def stream(key, suite, length):
    if suite == 2:
        return Cipher(ChaCha20(key, bytes(16)), None).encryptor().update(bytes(length))
    return Cipher(AES(key), CTR(bytes(16))).encryptor().update(bytes(length))


def x25519_public(secret):
    key = X25519PrivateKey.from_private_bytes(secret).public_key()
    return key.public_bytes(Encoding.Raw, PublicFormat.Raw)


def x25519(secret, public):
    peer = X25519PublicKey.from_public_bytes(public)
    return X25519PrivateKey.from_private_bytes(secret).exchange(peer)


def sign_with(scalar, message):
    key = ec.derive_private_key(int(scalar, 16), ec.SECP256R1())
    return key.sign(message, ec.ECDSA(SHA256(), deterministic_signing=True))


# ---------------------------------------------------------------- graph


def parameters(n, g, d):
    """Degree, threshold, whether the graph is complete."""
    bad, gone = floor((g + 1e-14) * n), floor((d + 1e-14) * n)
    staying = ceil((1 - d - 1e-14) * n)

    def chance(marked, k, x):
        return Fraction(comb(marked, x) * comb(n - marked, k - x), comb(n, k))

    for k in range(2, n - 1, 2) if n >= 32 else ():
        apart = Fraction(n * (n - k - 1), 2) * Fraction(comb(bad + gone, k), comb(n, k))
        if apart >= Fraction(1, 2**81):
            continue
        t1 = next(
            t
            for t in range(k + 1)
            if sum(chance(bad, k, x) for x in range(t + 1, k + 1)) <= Fraction(1, n * 2**81)
        )
        t2 = next(
            t
            for t in range(k + 1)
            if sum(chance(staying, k, x) for x in range(t + 1)) >= Fraction(1, n * 2**20)
        )
        t = (t1 + k) // 2 + 1
        if t <= t2:
            return k, t, False
    return n - 1, (n - 1 + bad) // 2 + 1, True


def permutation(n, seed):
    words = iter(struct.unpack(f"<{16 * n}I", stream(seed, 1, 64 * n)))
    order = list(range(n))
    for last in range(n - 1, 0, -1):
        word = next(w for w in words if w < 2**32 - 2**32 % (last + 1))
        place = word % (last + 1)
        order[last], order[place] = order[place], order[last]
    return order


def neighbours(n, k, complete, order, index):
    if complete:
        return [i for i in range(n) if i != index]
    place = order.index(index)
    return sorted(order[(place + s) % n] for s in range(-k // 2, k // 2 + 1) if s)


# ---------------------------------------------------------------- GF(2^8)


def times(a, b):
    product = 0
    for bit in range(8):
        product ^= (a << bit) * (b >> bit & 1)
    for bit in range(14, 7, -1):
        product ^= (0x11B << bit - 8) * (product >> bit & 1)
    return product


def inverse(a):
    return next(b for b in range(256) if times(a, b) == 1)


def share(secret, coefficients, x):
    """The value at x; coefficients: all of x, then all of x^2, ..."""
    value, power = list(secret), 1
    for at in range(0, len(coefficients), len(secret)):
        power = times(power, x)
        row = coefficients[at : at + len(secret)]
        value = [v ^ times(power, c) for v, c in zip(value, row, strict=True)]
    return bytes(value)


def combine(shares):
    secret = [0] * 32
    for x, one in shares.items():
        factor = 1
        for other in shares:
            if other != x:
                factor = times(factor, times(other, inverse(x ^ other)))
        secret = [s ^ times(factor, b) for s, b in zip(secret, one, strict=True)]
    return bytes(secret)


# ---------------------------------------------------------------- a transcript


def task_digest(t, helpers=()):
    """What names a task; helpers: the cards in it."""

    def of(name):
        return bytes.fromhex(t[name])

    card = ("key", "certificate", "signature")
    cards = b"".join(
        u64(h["edge"]) + b"".join(var(bytes.fromhex(h[name])) for name in card) for h in helpers
    )
    fields = (
        u64(t["run"]) + u32(t["round"]) + u32(t["attempt"]) + u32(t["purpose"])
        + of("weights") + u64(t["weights_size"]) + of("bundle") + u64(t["bundle_size"])
        + f64(t["clip"]) + u32(t["clients_max"]) + u32(t["bits"]) + u64(t["dimension"])
        + f64(t["noise"]) + bytes([t["central"], t["rotated"] + 2 * t["wide"]])
        + u64(t["kept"]) + f64(t["within"]) + u64(t["top"])
        + of("rng_key") + u32(t["time_ms"]) + u64(t["expires_s"]) + sha(of("manifest"))
        + b"\x01" + u32(t["suite"]) + u32(t["cohort_min"]) + f64(t["corrupt"]) + f64(t["dropout"])
        + u32(t["noise_survivors"]) + u64(t["denied_version"]) + u32(len(helpers)) + cards
    )  # fmt: skip
    found = sha(b"delian/task/v3" + fields)
    same("task digest", found, t["digest"])
    return found


def keys_of(member, task):
    """A member's keys, bundle and leaf."""
    session, device = task_digest(task), member["device"]
    secret = hkdf(bytes.fromhex(member["master"]), b"delian/session/v1" + session)
    made = {
        "sealing_secret": hkdf(secret, b"delian/sealing-key/v1"),
        "mask_secret": hkdf(secret, b"delian/mask-key/v1"),
        "self_seed": hkdf(secret, b"delian/self-seed/v1"),
        "next_master": hkdf(bytes.fromhex(member["master"]), b"delian/ratchet/v1"),
    }
    made["sealing_key"] = x25519_public(made["sealing_secret"])
    made["mask_key"] = x25519_public(made["mask_secret"])
    keys = var(made["sealing_key"]) + var(made["mask_key"])
    message = b"delian/bundle/v2" + session + u64(device) + keys
    made["signature"] = sign_with(member["signing_key"], message)
    proof = var(bytes.fromhex(member["certificate"])) + var(made["signature"])
    names = u64(task["run"]) + u32(task["round"]) + u32(task["attempt"]) + u64(device)
    made["leaf"] = sha(b"delian/leaf/v1" + names + keys + proof)
    for name, value in made.items():
        same(f"device {device}: {name}", value, member[name])
    return secret, made


def words_of(rule, device, count):
    return [(device * rule["device"] + j * rule["place"]) % 2**32 for j in range(count)]


def check(transcript):
    task, members, cohort = transcript["task"], transcript["members"], transcript["cohort"]
    suite, n, length = task["suite"], len(members), task["dimension"] + 1
    secrets, made = zip(*(keys_of(member, task) for member in members), strict=True)
    same("order of members", sorted(m["device"] for m in members), [m["device"] for m in members])
    seats = (u64(m["device"]) + own["leaf"] for m, own in zip(members, made, strict=True))
    roster = sha(b"delian/roster/v2" + u32(n) + b"".join(seats))
    binding = sha(b"delian/binding/v2" + task_digest(task) + roster)
    message = b"delian/signed-task/v1" + task_digest(task)
    by_coordinator = sign_with(transcript["coordinator_key"], message)
    same("task signature", by_coordinator, transcript["task_signature"])
    attempt = u64(task["run"]) + u32(task["round"]) + u32(task["attempt"])
    seed = sha(b"delian/graph/v1" + roster + attempt)
    k, t, complete = parameters(n, task["corrupt"], task["dropout"])
    order = permutation(n, seed)
    for name, value in [("roster", roster), ("binding", binding), ("graph_seed", seed),
                        ("degree", k), ("threshold", t), ("order", order)]:  # fmt: skip
        same(name, value, cohort[name])
    near = [neighbours(n, k, complete, order, i) for i in range(n)]
    alive = [i for i in range(n) if members[i]["masked_sha256"]]
    bitmap = sum(1 << i for i in alive).to_bytes((n + 7) // 8, "little")
    same("survivors", bitmap, cohort["survivors"])

    def pair_key(i, j):
        shared = x25519(made[i]["mask_secret"], made[j]["mask_key"])
        return hkdf(shared, b"delian/mask/v1" + binding + u32(min(i, j)) + u32(max(i, j)))

    def sealed_for(i, j):
        """The plain and the sealed shares of i for j."""
        random = stream(hkdf(secrets[i], b"delian/shares/v1" + binding), 1, 64 * (t - 1))
        half, x = 32 * (t - 1), near[i].index(j) + 1
        plain = share(made[i]["self_seed"], random[:half], x)
        plain += share(made[i]["mask_secret"], random[half:], x)
        label = binding + u32(i) + u32(j)
        shared = x25519(made[i]["sealing_secret"], made[j]["sealing_key"])
        key = hkdf(shared, b"delian/seal/v1" + label)
        return plain, AESGCM(key).encrypt(bytes(12), plain, label)

    def masks_of(i):
        """(name, key, sign) of each mask of member i."""
        yield "self", hkdf(made[i]["self_seed"], b"delian/self/v1" + binding), 1
        for j in near[i]:
            yield str(j), pair_key(i, j), 1 if j > i else -1

    def add(total, key, sign):
        out = struct.unpack(f"<{length}I", stream(key, suite, 4 * length))
        return [(a + sign * b) % 2**32 for a, b in zip(total, out, strict=True)]

    total = [0] * length
    for i, member in enumerate(members):
        who = f"device {member['device']}"
        same(f"{who}: neighbours", near[i], member["neighbours"])
        for j in near[i]:
            plain, sealed = sealed_for(i, j)
            same(f"{who}: shares for {j}", plain, member["shares"][str(j)])
            same(f"{who}: sealed for {j}", sealed, member["sealed"][str(j)])
        masked = words_of(transcript["updates"], member["device"], length)
        for name, key, sign in masks_of(i):
            same(f"{who}: mask {name}", stream(key, suite, 64), member["masks"][name])
            masked = add(masked, key, sign)
        if i not in alive:
            continue
        data = struct.pack(f"<{length}I", *masked)
        same(f"{who}: masked update", sha(data), member["masked_sha256"])
        total = [(a + b) % 2**32 for a, b in zip(total, masked, strict=True)]
        message = b"delian/consent/v1" + binding + u64(member["device"]) + var(bitmap)
        same(f"{who}: consent", sign_of(member, message), member["consent"])
        for j in near[i]:
            half = slice(0, 32) if j in alive else slice(32, 64)
            same(f"{who}: unmasks {j}", sealed_for(j, i)[0][half], member["unmask"][str(j)])
    for i in range(n):  # the coordinator: from t shares of each
        holders = [h for h in near[i] if h in alive][:t]
        shares = {
            near[i].index(h) + 1: bytes.fromhex(members[h]["unmask"][str(i)]) for h in holders
        }
        secret = combine(shares)
        if i in alive:
            total = add(total, hkdf(secret, b"delian/self/v1" + binding), -1)
            continue
        for j in set(near[i]) & set(alive):
            shared = x25519(secret, made[j]["mask_key"])
            label = binding + u32(min(i, j)) + u32(max(i, j))
            # j added it (i above j) or subtracted it.
            total = add(total, hkdf(shared, b"delian/mask/v1" + label), -1 if i > j else 1)
    plain = [words_of(transcript["updates"], members[i]["device"], length) for i in alive]
    if total != [sum(column) % 2**32 for column in zip(*plain, strict=True)]:
        raise SystemExit("the masks do not cancel")
    same("sum", sha(struct.pack(f"<{length}I", *total)), transcript["sum_sha256"])


# ---------------------------------------------------------------- helper mode


def hpke_seal(private, receiver, info, plain):
    """RFC 9180, base mode: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-256-GCM."""
    kem, suite = b"KEM\x00\x20", b"HPKE\x00\x20\x00\x01\x00\x02"

    def extract(kind, salt, label, value):
        return hmac.digest(salt or bytes(32), b"HPKE-v1" + kind + label + value, "sha256")

    def expand(kind, secret, label, value, length):
        value = struct.pack(">H", length) + b"HPKE-v1" + kind + label + value
        return hmac.digest(secret, value + b"\x01", "sha256")[:length]

    sender = x25519_public(private)
    early = extract(kem, b"", b"eae_prk", x25519(private, receiver))
    shared = expand(kem, early, b"shared_secret", sender + receiver, 32)
    context = bytes(1) + extract(suite, b"", b"psk_id_hash", b"")
    context += extract(suite, b"", b"info_hash", info)
    secret = extract(suite, shared, b"secret", b"")
    key = expand(suite, secret, b"key", context, 32)
    nonce = expand(suite, secret, b"base_nonce", context, 12)
    return sender + AESGCM(key).encrypt(nonce, plain, b"")


def check_helpers(batch):
    task, members, helpers = batch["task"], batch["members"], batch["helpers"]
    session, length = task_digest(task, helpers), task["dimension"] + 1
    named, keys = b"", []
    for helper in helpers:
        keys.append(x25519_public(bytes.fromhex(helper["private"])))
        same("a helper's key", keys[-1], helper["key"])
        card = u64(helper["edge"]) + keys[-1]
        signature = sign_with(helper["signing_key"], b"delian/helper-key/v1" + card)
        same("a helper's signature", signature, helper["signature"])
        named += card
    binding = sha(b"delian/helpers/v2" + session + u32(len(helpers)) + named)
    same("binding", binding, batch["binding"])
    sums, shown = [[0] * length for _ in helpers], [b"" for _ in helpers]
    total = [0] * length
    for member in members:
        device, plain = member["device"], words_of(batch["updates"], member["device"], length)
        secret = hkdf(bytes.fromhex(member["master"]), b"delian/session/v1" + session)
        masked = plain
        for j, key in enumerate(keys):

            def about(what, j=j, device=device):
                return b"delian/helper-" + what + b"/v1" + binding + u32(j) + u64(device)

            seed = hkdf(secret, about(b"seed"))
            box = hpke_seal(hkdf(secret, about(b"sender")), key, about(b"seal"), seed)
            same(f"box {j} of {device}", box, member["boxes"][j])
            signature = sign_with(member["signing_key"], about(b"share") + box)
            same(f"signature {j} of {device}", signature, member["signatures"][j])
            data = stream(hkdf(seed, about(b"mask")), task["suite"], 4 * length)
            mask = struct.unpack(f"<{length}I", data)
            masked = [(a + b) % 2**32 for a, b in zip(masked, mask, strict=True)]
            sums[j] = [(a + b) % 2**32 for a, b in zip(sums[j], mask, strict=True)]
            shown[j] += binding + u64(device) + box
        data = struct.pack(f"<{length}I", *masked)
        same(f"masked update of {device}", sha(data), member["masked_sha256"])
        total = [(a + b) % 2**32 for a, b in zip(total, masked, strict=True)]
    for helper, words, boxes in zip(helpers, sums, shown, strict=True):
        same("batch", sha(b"delian/helper-batch/v1" + boxes), helper["digest"])
        data = struct.pack(f"<{length}I", *words)
        same("a helper's sum", sha(data), helper["masks_sha256"])
        total = [(a - b) % 2**32 for a, b in zip(total, words, strict=True)]
    plain = [words_of(batch["updates"], member["device"], length) for member in members]
    if total != [sum(column) % 2**32 for column in zip(*plain, strict=True)]:
        raise SystemExit("the masks do not come off")
    same("sum", sha(struct.pack(f"<{length}I", *total)), batch["sum_sha256"])


def sign_of(member, message):
    return sign_with(member["signing_key"], message)


def check_graphs(cases):
    for case in cases:
        n, seed = case["members"], bytes.fromhex(case["seed"])
        k, t, complete = parameters(n, case["corrupt"], case["dropout"])
        same(
            f"graph of {n}",
            [k, t, complete],
            [case[x] for x in ("degree", "threshold", "complete")],
        )
        order = permutation(n, seed)
        same(f"order of {n}", order, case["order"])
        same(f"neighbours in {n}", neighbours(n, k, complete, order, 0), case["neighbours_of_0"])


def main():
    if len(sys.argv) == 1:
        raise SystemExit("usage: check.py TRANSCRIPT.json...")
    for name in sys.argv[1:]:
        try:
            content = json.loads(Path(name).read_text(encoding="utf-8"))
            if "graphs" in content:
                check_graphs(content["graphs"])
            elif "helpers" in content:
                check_helpers(content)
            else:
                check(content)
        except (OSError, ValueError, KeyError, TypeError) as error:
            kind = type(error).__name__
            raise SystemExit(f"{name} is no transcript ({kind}: {error})") from None
        print(f"{Path(name).name}: good")


if __name__ == "__main__":
    main()
