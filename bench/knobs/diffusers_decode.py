"""A VAE that decodes a large image in one piece. Setting: `vae.enable_tiling()`."""

import sys

import torch
from diffusers import AutoencoderKL

on = sys.argv[1:] == ["on"]
vae = (
    AutoencoderKL(
        down_block_types=["DownEncoderBlock2D"] * 4,
        up_block_types=["UpDecoderBlock2D"] * 4,
        block_out_channels=[64, 128, 256, 256],
        sample_size=512,
    )
    .cuda()
    .half()
    .eval()
)
if on:
    vae.enable_tiling()
with torch.no_grad():
    for _ in range(4):
        vae.decode(torch.randn(1, 4, 192, 192, device="cuda", dtype=torch.half))
