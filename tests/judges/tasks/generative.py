"""Generative models: the noise that they draw is an input, so that both sides have the same."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .task import Task, flags, ids, mlp, numbers

SIZE, LATENT = 16, 6


class Vae(nn.Module):
    """Kingma and Welling 2014, over images."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU(), nn.Flatten()
        )
        self.mean, self.log_variance = nn.Linear(128, LATENT), nn.Linear(128, LATENT)
        self.decoder = nn.Sequential(
            nn.Linear(LATENT, 128),
            nn.ReLU(),
            nn.Unflatten(1, (8, 4, 4)),
            nn.ConvTranspose2d(8, 8, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(8, 1, 4, 2, 1),
        )

    def forward(self, x, noise):
        made = self.encoder(x)
        mean, log_variance = self.mean(made), self.log_variance(made)
        latent = mean + noise * torch.exp(0.5 * log_variance)
        return self.decoder(latent), mean, log_variance


def vae() -> Task:
    def batch(rows, g):
        x = torch.rand(rows, 1, SIZE, SIZE, generator=g)
        return (x, numbers(g, rows, LATENT)), x.clone()

    def loss(found, x):
        logits, mean, log_variance = found
        seen = F.binary_cross_entropy_with_logits(logits, x, reduction="sum")
        near = -0.5 * torch.sum(1 + log_variance - mean**2 - log_variance.exp())
        return (seen + near) / x.shape[0]

    return Task(Vae(), batch, loss)


class Quantised(nn.Module):
    """Van den Oord et al. 2017 (VQ-VAE): the nearest code, slopes straight through."""

    def __init__(self, codes=12, width=6):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, width, 4, 4), nn.Tanh())
        self.codes = nn.Embedding(codes, width)
        self.decoder = nn.ConvTranspose2d(width, 1, 4, 4)

    def forward(self, x):
        made = self.encoder(x).permute(0, 2, 3, 1)
        far = torch.cdist(made.reshape(-1, made.shape[-1]), self.codes.weight)
        code = self.codes(far.argmin(1)).view(made.shape)
        through = made + (code - made).detach()
        terms = F.mse_loss(code, made.detach()) + 0.25 * F.mse_loss(made, code.detach())
        return self.decoder(through.permute(0, 3, 1, 2)), terms


def vq_vae() -> Task:
    def batch(rows, g):
        x = torch.rand(rows, 1, SIZE, SIZE, generator=g)
        return (x,), x.clone()

    return Task(Quantised(), batch, lambda found, x: F.mse_loss(found[0], x) + found[1])


def gan_generator() -> Task:
    """A generator's step through a discriminator that is fixed (Goodfellow et al. 2014)."""

    class Game(nn.Module):
        def __init__(self):
            super().__init__()
            self.generator = nn.Sequential(
                nn.ConvTranspose2d(LATENT, 8, 4, bias=False),
                nn.BatchNorm2d(8),
                nn.ReLU(),
                nn.ConvTranspose2d(8, 4, 4, 2, 1, bias=False),
                nn.BatchNorm2d(4),
                nn.ReLU(),
                nn.ConvTranspose2d(4, 1, 4, 2, 1),
                nn.Tanh(),
            )
            self.discriminator = _critic().requires_grad_(False)

        def forward(self, noise):
            return self.discriminator(self.generator(noise[:, :, None, None]))

    def batch(rows, g):
        return (numbers(g, rows, LATENT),), None

    return Task(Game(), batch, lambda score: F.softplus(-score).mean())


def _critic() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.utils.parametrizations.spectral_norm(nn.Conv2d(4, 8, 4, 2, 1)),
        nn.InstanceNorm2d(8, affine=True),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(128, 1),
    )


def gan_discriminator() -> Task:
    """A discriminator's step: images, and those of a generator, with their labels."""

    def batch(rows, g):
        return (numbers(g, rows, 1, SIZE, SIZE),), flags(g, rows, 1)

    critic = _critic()
    nn.utils.parametrize.remove_parametrizations(critic[2], "weight")
    return Task(critic, batch, F.binary_cross_entropy_with_logits)


class Coupling(nn.Module):
    """Dinh et al. 2017 (RealNVP), equations 7 and 8: half moves the other half."""

    def __init__(self, size, turned):
        super().__init__()
        self.turned = turned
        self.net = mlp(size // 2, 16, size)

    def forward(self, x):
        kept, moved = x.chunk(2, 1)[:: -1 if self.turned else 1]
        scale, shift = self.net(kept).chunk(2, 1)
        scale = torch.tanh(scale)
        parts = [kept, moved * scale.exp() + shift]
        return torch.cat(parts[:: -1 if self.turned else 1], 1), scale.sum(1)


class Flow(nn.Module):
    def __init__(self, size=6):
        super().__init__()
        self.steps = nn.ModuleList(Coupling(size, k % 2 == 1) for k in range(4))

    def forward(self, x):
        total = 0
        for step in self.steps:
            x, log_slope = step(x)
            total = total + log_slope
        return x, total


def real_nvp() -> Task:
    def batch(rows, g):
        return (numbers(g, rows, 6),), None

    def loss(found):
        return (0.5 * (found[0] ** 2).sum(1) - found[1]).mean()

    return Task(Flow(), batch, loss)


class Denoiser(nn.Module):
    """A U-Net of Ho et al. 2020: time by sines, group norms, attention in the middle."""

    def __init__(self, width=8, steps=50):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 16), nn.SiLU())
        self.into = nn.Conv2d(1, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.shift = nn.Linear(16, 2 * width)
        self.norm = nn.GroupNorm(4, 2 * width)
        self.attend = nn.MultiheadAttention(2 * width, 2, batch_first=True)
        self.up = nn.Conv2d(2 * width, width, 3, padding=1)
        self.out = nn.Sequential(
            nn.GroupNorm(4, 2 * width), nn.SiLU(), nn.Conv2d(2 * width, 1, 3, padding=1)
        )
        kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, steps), 0)
        self.register_buffer("kept", kept)

    def forward(self, x, noise, step):
        kept = self.kept[step].view(-1, 1, 1, 1)
        noisy = kept.sqrt() * x + (1 - kept).sqrt() * noise
        rate = torch.exp(-torch.arange(8) * 0.8).to(x.dtype)
        angle = step.to(x.dtype).unsqueeze(1) * rate
        time = self.time(torch.cat([angle.sin(), angle.cos()], 1))
        wide = self.into(noisy)
        low = self.down(F.silu(wide)) + self.shift(time)[:, :, None, None]
        low = F.silu(self.norm(low))
        flat = low.flatten(2).transpose(1, 2)
        low = low + self.attend(flat, flat, flat)[0].transpose(1, 2).view(low.shape)
        high = self.up(F.interpolate(low, scale_factor=2.0, mode="nearest"))
        return self.out(torch.cat([high, wide], 1))


def diffusion_unet() -> Task:
    def batch(rows, g):
        noise = numbers(g, rows, 1, SIZE, SIZE)
        return (numbers(g, rows, 1, SIZE, SIZE), noise, ids(g, 50, rows)), noise.clone()

    return Task(Denoiser(), batch, F.mse_loss)


class MaskedAutoencoder(nn.Module):
    """He et al. 2022: a quarter of the patches is encoded, by an order that is given."""

    def __init__(self, width=16, patch=4):
        super().__init__()
        self.patch, self.kept = patch, 4
        self.join = nn.Conv2d(1, width, patch, patch)
        self.place = nn.Parameter(torch.randn(1, 16, width) * 0.1)
        self.hidden = nn.Parameter(torch.randn(1, 1, width) * 0.1)
        self.encoder = nn.TransformerEncoderLayer(width, 2, 32, 0, "gelu", batch_first=True)
        self.decoder = nn.TransformerEncoderLayer(width, 2, 32, 0, "gelu", batch_first=True)
        self.out = nn.Linear(width, patch * patch)

    def forward(self, x, order):
        tokens = self.join(x).flatten(2).transpose(1, 2) + self.place
        wide = order.unsqueeze(2).expand(-1, -1, tokens.shape[2])
        seen = self.encoder(tokens.gather(1, wide[:, : self.kept]))
        others = self.hidden.expand(x.shape[0], tokens.shape[1] - self.kept, -1)
        whole = torch.cat([seen, others], 1)
        back = torch.zeros_like(tokens).scatter(1, wide, whole)
        return self.out(self.decoder(back + self.place))


def masked_autoencoder() -> Task:
    def batch(rows, g):
        x = torch.rand(rows, 1, SIZE, SIZE, generator=g)
        order = torch.rand(rows, 16, generator=g).argsort(1)
        return (x, order), x.clone()

    def loss(guess, x):
        return F.mse_loss(guess, F.unfold(x, 4, stride=4).transpose(1, 2))

    return Task(MaskedAutoencoder(), batch, loss)


TASKS = {
    "vae": vae,
    "vq_vae": vq_vae,
    "gan_generator": gan_generator,
    "gan_discriminator": gan_discriminator,
    "real_nvp": real_nvp,
    "diffusion_unet": diffusion_unet,
    "masked_autoencoder": masked_autoencoder,
}
