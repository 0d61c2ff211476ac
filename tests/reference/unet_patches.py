"""DistriFusion on diffusers' own UNet2DConditionModel: one thread a patch of rows, each layer that looks beyond its patch replaced."""
import threading

import torch
import torch.nn.functional as F
from diffusers.models.attention_processor import Attention
from diffusers.models.downsampling import Downsample2D
from diffusers.models.upsampling import Upsample2D


class PatchedUNet:
    """Runs `unet` on `patches` patches. Modes of a step: sync, stale, frozen, naive (patches never see each other); of group norms:
    corrected, stale, synchronous, separate. `unbiased`: variances times n/(n-1), n the elements of a patch's group, as in the
    original's code."""

    def __init__(self, unet, height, width, patches, norm_mode, unbiased=False):
        self.unet, self.patches, self.norm_mode, self.unbiased = unet, patches, norm_mode, unbiased
        cuts = [0]
        for p in range(patches):
            cuts.append(cuts[-1] + height // patches + (p < height % patches))
        self.cuts, self.widths = [cuts], [width]
        for _ in unet.config.block_out_channels[1:]:
            self.cuts.append([-(-c // 2) for c in self.cuts[-1]])
            self.widths.append(-(-self.widths[-1] // 2))
        self.old, self.local = {}, threading.local()
        self.barrier = threading.Barrier(patches)
        self.restore = []
        for name, module in unet.named_modules():
            resampler = name.endswith((".downsamplers.0", ".upsamplers.0"))
            if isinstance(module, Downsample2D):
                self.replace(module, self.down, name)
            elif isinstance(module, Upsample2D):
                self.replace(module, self.up, name)
            elif isinstance(module, torch.nn.Conv2d) and not (".downsamplers." in name or ".upsamplers." in name):
                self.replace(module, self.conv if module.kernel_size == (3, 3) else self.pointwise, name)
            elif isinstance(module, torch.nn.GroupNorm):
                self.replace(module, self.norm, name)
            elif isinstance(module, Attention):
                self.replace(module, self.attend if name.endswith("attn1") else self.cross, name)
            assert not resampler or isinstance(module, (Downsample2D, Upsample2D))

    def replace(self, module, method, name):
        self.restore.append((module, module.forward))
        plain = module.forward
        module.forward = lambda x, *args, **kwargs: method(module, plain, name, x, *args, **kwargs)

    def undo(self):
        for module, forward in self.restore:
            module.forward = forward

    def run(self, latents, mode, **arguments):
        """Predictions for the whole latents in one step."""
        self.mode, self.new, self.board = mode, {}, {}
        outputs, errors = [None] * self.patches, []

        def work(p):
            try:
                torch.set_grad_enabled(False)
                self.local.patch, self.local.level = p, 0
                a, b = self.cuts[0][p:p + 2]
                outputs[p] = self.unet(latents[:, :, a:b], **arguments).sample
            except Exception as error:  # noqa: BLE001
                errors.append(error)
                self.barrier.abort()
        threads = [threading.Thread(target=work, args=(p,)) for p in range(self.patches)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        for site, values in self.new.items():
            self.old[site] = [values[p] for p in range(self.patches)]
        return torch.cat(outputs, 2)

    def keep(self, site, value):
        self.new.setdefault(site, {})[self.local.patch] = value

    def everybody(self, site, value, fresh):
        """Values of all patches, of this step or of the one before."""
        if fresh or self.mode == "sync":
            self.keep(site, value)
            self.board.setdefault(site, {})[self.local.patch] = value
            self.barrier.wait(60)
            return [self.board[site][p] for p in range(self.patches)]
        if self.mode == "stale":
            self.keep(site, value)
        return self.old[site]

    def rows(self, level, patch=None):
        patch = self.local.patch if patch is None else patch
        return self.cuts[level][patch], self.cuts[level][patch + 1]

    def window(self, name, x, first, last, fresh=False):
        """Rows first..last of the whole map, zeros beyond the picture; own rows are fresh."""
        level, (a, b) = self.local.level, self.rows(self.local.level)
        # whole patches of the others, though only rows beside ours are looked at
        edges = None if self.mode == "naive" else self.everybody(name, x, fresh)
        height, parts = self.cuts[level][-1], []
        for y in range(first, last):
            if y < 0 or y >= height:
                parts.append(torch.zeros(x.shape[0], x.shape[1], 1, x.shape[3]))
            elif a <= y < b:
                parts.append(x[:, :, y - a:y - a + 1])
            elif self.mode == "naive":
                parts.append(x.new_zeros(x.shape[0], x.shape[1], 1, x.shape[3]))
            else:
                p = next(q for q in range(self.patches) if self.cuts[level][q] <= y < self.cuts[level][q + 1])
                start = self.cuts[level][p]
                parts.append(edges[p][:, :, y - start:y - start + 1])
        return torch.cat(parts, 2) if parts else x[:, :, :0]

    def conv(self, module, plain, name, x):
        a, b = self.rows(self.local.level)
        rows = self.window(name, x, a - 1, b + 1, fresh=name == "conv_in")
        if a == b:
            return x.new_zeros(x.shape[0], module.out_channels, 0, x.shape[3])
        return F.conv2d(rows, module.weight, module.bias, padding=(0, 1))

    def pointwise(self, module, plain, name, x):
        return plain(x) if x.shape[2] else x.new_zeros(x.shape[0], module.out_channels, 0, x.shape[3])

    def down(self, module, plain, name, x):
        level = self.local.level
        c, d = self.rows(level + 1)
        rows = self.window(name, x, 2 * c - 1, 2 * d, fresh=False)
        self.local.level += 1
        if c == d:
            return x.new_zeros(x.shape[0], module.conv.out_channels, 0, self.widths[level + 1])
        # the last row that a kernel reads may lie beyond the picture; window gives rows up to it
        return F.conv2d(rows, module.conv.weight, module.conv.bias, stride=2, padding=(0, 1))

    def up(self, module, plain, name, x, *_, **__):
        level = self.local.level - 1
        a, b = self.rows(level)
        height = self.cuts[level][-1]
        first, last = max(a - 1, 0) // 2, min(b, height - 1) // 2 + 1
        rows = self.window(name, x, first, last)
        self.local.level -= 1
        if a == b:
            return x.new_zeros(x.shape[0], module.conv.out_channels, 0, self.widths[level])
        rows = rows.repeat_interleave(2, 2).repeat_interleave(2, 3)[:, :, :, :self.widths[level]]
        wanted = [rows[:, :, y - 2 * first:y - 2 * first + 1] if 0 <= y < height else torch.zeros_like(rows[:, :, :1]) for y in range(a - 1, b + 1)]
        return F.conv2d(torch.cat(wanted, 2), module.conv.weight, module.conv.bias, padding=(0, 1))

    def norm(self, module, plain, name, x):
        level, p = self.local.level, self.local.patch
        counts = [b - a for a, b in zip(self.cuts[level], self.cuts[level][1:])]
        groups = x.double().reshape(x.shape[0], module.num_groups, -1)
        own = torch.stack([groups.mean(2), (groups ** 2).mean(2)]) if counts[p] else torch.zeros(2, x.shape[0], module.num_groups, dtype=torch.float64)

        def whole(values):
            return sum(n * v for n, v in zip(counts, values) if n) / sum(counts)

        if self.mode == "naive":
            mean, variance = own[0], own[1] - own[0] ** 2
        elif self.mode == "sync" or self.norm_mode == "synchronous":
            mean, square = whole(self.everybody(name, own, True))
            variance = square - mean ** 2
        elif self.norm_mode == "separate":
            mean, variance = own[0], own[1] - own[0] ** 2
        else:
            before = self.everybody(name, own, False)
            if self.norm_mode == "stale":
                mean, square = whole([own if q == p else v for q, v in enumerate(before)])
                variance = square - mean ** 2
            else:
                mean, square = whole(before) + own - before[p]
                variance = square - mean ** 2
                variance = torch.where(variance < 0, own[1] - own[0] ** 2, variance)
        if not counts[p]:
            return x
        if self.unbiased:
            variance = variance * groups.shape[2] / (groups.shape[2] - 1)
        y = (groups - mean[..., None]) * (variance[..., None] + module.eps).rsqrt()
        y = y.reshape(x.shape) * module.weight.double()[None, :, None, None] + module.bias.double()[None, :, None, None]
        return y.to(x.dtype)

    def attend(self, module, plain, name, x, **_):
        def heads(t):
            return t.reshape(t.shape[0], t.shape[1], module.heads, -1).transpose(1, 2)
        own = (module.to_k(x), module.to_v(x))
        if self.mode == "naive":
            all_kv = [own]
        else:
            all_kv = list(self.everybody(name, own, False))
            all_kv[self.local.patch] = own
        if not x.shape[1]:
            return x
        keys, values = (torch.cat([kv[i] for kv in all_kv], 1) for i in (0, 1))
        out = F.scaled_dot_product_attention(heads(module.to_q(x)), heads(keys), heads(values))
        return module.to_out[0](out.transpose(1, 2).reshape(x.shape))

    def cross(self, module, plain, name, x, **kwargs):
        return plain(x, **kwargs) if x.shape[1] else x
