"""Tiny random checkpoints in diffusers' folder format."""
import os
import shutil
import tempfile

import sentencepiece
import torch
from diffusers import AutoencoderKL, DPMSolverMultistepScheduler, PixArtAlphaPipeline, PixArtTransformer2DModel
from transformers import T5Config, T5EncoderModel, T5Tokenizer

from common import FIXTURES, SCHEDULER, randomise

WORDS = ("a an the on of left right above below background circle square triangle star red green blue yellow orange "
         "purple white black gray picture photo cat dog house tree river mountain").split()
# A few rewritings of nmt_nfkc, so that the normaliser is exercised without its 200 KB table.
REWRITINGS = {"ﬁ": "fi", "ﬂ": "fl", "\t": " ", "\n": " ", "\u00a0": " ", "\u3000": " ", "e\u0301": "\u00e9", "…": "...",
              "½": "1/2", "™": "TM", "\u200b": "", **{chr(0xFEE0 + k): chr(k) for k in range(0x21, 0x7F)}}


def make_tokenizer(folder):
    """spiece.model of about 100 pieces, with pad 0, eos 1, unk 2 as in T5."""
    with tempfile.TemporaryDirectory() as work:
        os.chdir(work)  # the model remembers the names of these files
        with open("corpus.txt", "w", encoding="utf-8") as f:
            for i, first in enumerate(WORDS):
                for k, second in enumerate(WORDS):
                    f.write(f"{first} {second} {WORDS[(i * 7 + k) % len(WORDS)]}, {second}. café {i * k % 10} - {first}s!\n")
        with open("rules.tsv", "w", encoding="utf-8") as f:
            for source, target in sorted(REWRITINGS.items()):
                hexes = [" ".join(f"{ord(c):X}" for c in text) for text in (source, target)]
                f.write(f"{hexes[0]}\t{hexes[1]}\n")
        sentencepiece.SentencePieceTrainer.train(
            input="corpus.txt", model_prefix="spiece", vocab_size=110, model_type="unigram", pad_id=0, eos_id=1, unk_id=2,
            bos_id=-1, hard_vocab_limit=False, character_coverage=1.0, normalization_rule_tsv="rules.tsv", minloglevel=2,
            num_threads=1)
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy("spiece.model", folder / "spiece.model")
        os.chdir(folder)
    return T5Tokenizer.from_pretrained(str(folder), extra_ids=0)


def make_text_encoder(vocabulary, buckets=8, distance=20):
    config = T5Config(vocab_size=vocabulary, d_model=24, d_kv=8, d_ff=40, num_heads=3, num_layers=2, feed_forward_proj="gated-gelu",
                      dropout_rate=0.0, relative_attention_num_buckets=buckets, relative_attention_max_distance=distance)
    return randomise(T5EncoderModel(config), 1, {"SelfAttention.q": 0.5})


def make_vae():
    vae = AutoencoderKL(down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
                        block_out_channels=(8, 8, 16, 16), layers_per_block=1, latent_channels=4, norm_num_groups=4,
                        sample_size=64, scaling_factor=0.5)
    return randomise(vae, 2, {"decoder.conv_out": 1.0})


def make_transformer(seed, heads, layers, **config):
    width = 16 * heads
    model = PixArtTransformer2DModel(
        num_attention_heads=heads, attention_head_dim=16, in_channels=4, out_channels=8, num_layers=layers,
        cross_attention_dim=width, patch_size=2, caption_channels=24, norm_type="ada_norm_single",
        norm_elementwise_affine=False, norm_eps=1e-6, attention_bias=True, activation_fn="gelu-approximate", **config)
    randomise(model, seed, {"adaln_single": 0.7, "to_q": 1.5, "proj_out": 0.1})
    return towards_noise(model)


def towards_noise(model):
    """Lets the predicted noise follow the input, as a trained model's does; otherwise latents grow a thousandfold."""
    embed, out = model.pos_embed.proj.weight, model.proj_out.weight
    width, inputs = embed.shape[0], embed[0].numel()
    basis = torch.linalg.qr(embed.reshape(width, inputs))[0]
    embed.copy_(2.5 * basis.reshape(embed.shape))
    # rows of proj_out are (p, q, channel), columns of the patch (channel, p, q)
    rows = out.view(2, 2, 8, width)[:, :, :4]
    rows += (inputs / width) ** 0.5 * basis.T.reshape(4, 2, 2, width).permute(1, 2, 0, 3)
    return model


def make_pipeline(name, transformer):
    folder = FIXTURES / name
    shutil.rmtree(folder, ignore_errors=True)
    tokenizer = make_tokenizer(folder / "tokenizer")
    pipe = PixArtAlphaPipeline(
        tokenizer=tokenizer, text_encoder=make_text_encoder(len(tokenizer)), vae=make_vae(), transformer=transformer,
        scheduler=DPMSolverMultistepScheduler(**SCHEDULER, solver_order=2, algorithm_type="dpmsolver++"))
    pipe.save_pretrained(folder)
    return folder


def make_variants():
    """One transformer of two blocks, stored whole, in two shards and in half precision."""
    model = make_transformer(7, 2, 2, sample_size=16, interpolation_scale=1, use_additional_conditions=False)
    shutil.rmtree(FIXTURES / "tiny-variants", ignore_errors=True)
    for name, dtype, size in (("float32", None, "5GB"), ("sharded", None, "110KB"), ("bfloat16", torch.bfloat16, "5GB"),
                              ("float16", torch.float16, "5GB")):
        copy = PixArtTransformer2DModel.from_config(model.config)
        copy.load_state_dict(model.state_dict())
        copy.to(dtype or torch.float32).save_pretrained(FIXTURES / "tiny-variants" / name, max_shard_size=size)
    print("tiny-variants", sorted(p.name for p in (FIXTURES / "tiny-variants" / "sharded").iterdir()))


def make():
    make_pipeline("tiny-pixart", make_transformer(3, 2, 5, sample_size=16, interpolation_scale=1, use_additional_conditions=False))
    make_pipeline("tiny-pixart-1024", make_transformer(4, 3, 3, sample_size=128, interpolation_scale=2, use_additional_conditions=None))
    make_variants()


def load(name):
    pipe = PixArtAlphaPipeline.from_pretrained(FIXTURES / name)
    pipe.set_progress_bar_config(disable=True)
    return pipe
