"""Rules for keys and values that are not fresh. Troupe has `Stale` and `Predict`; the others were tried beside them: see benchmarks/results/quality.md."""
import torch

NAN = float("nan")


def sums(product, over):
    return torch.nan_to_num(product).sum(dim=over, keepdim=True)


def ratio(top, bottom, low, high):
    return torch.where(bottom > 0, (top / bottom).clamp(low, high), 0.0).float()


def by_head(x):
    return x.unflatten(-1, (3, x.shape[-1] // 3))  # [2, b, tokens, heads, d]


class Rule:
    """x̂ of every row from (x, x1, x2, x3), each [2, b, tokens, width] with NaN where a row has none. The base is Troupe's own rule."""
    low, high, over, heads = 0.0, 1.0, (-2, -1), False

    def __init__(self, attention):
        self.attention = attention

    def rows(self, x):
        """The rows that α is fitted on."""
        return x

    def more(self, top, bottom):
        return top, bottom

    def change(self, x, one, two, three):
        """x̂ − x1, NaN where it cannot be told."""
        was = one - two
        x = self.rows(x)
        step, before = (x - one), torch.where(x.isnan(), NAN, was)
        if self.heads:
            step, before = by_head(step), by_head(before)
            alpha = ratio(*self.more(sums(step * before, (-3, -1)), sums(before * before, (-3, -1))), self.low, self.high)
            return (alpha * by_head(was)).flatten(-2)
        return ratio(*self.more(sums(step * before, self.over), sums(before * before, self.over)), self.low, self.high) * was

    def __call__(self, x, one, two, three):
        change = self.change(x, one, two, three)
        return torch.where(change.isnan(), one, one + change)


class Stale(Rule):
    def change(self, x, one, two, three):
        return torch.full_like(one, NAN)


class Predict(Rule):
    """one α per block, item and K or V: Troupe's own"""


class Head(Rule):
    """α by head"""
    heads = True


class Channel(Rule):
    """α by channel"""
    over = (-2,)


class ChannelShrunk(Rule):
    """α by channel, drawn half way to the block's"""
    def change(self, x, one, two, three):
        self.over = (-2,)
        fine = super().change(x, one, two, three)
        self.over = (-2, -1)
        return (fine + super().change(x, one, two, three)) / 2


class Wide(Rule):
    """α in [0, 1.5]"""
    high = 1.5


class Free(Rule):
    """α not clamped"""
    low, high = -9.0, 9.0


class Damped(Rule):
    """α in [0, 0.9]"""
    high = 0.9


class One(Rule):
    """α = 1 always"""
    low = high = 1.0


class TwoThirds(Rule):
    """α = 2/3 always"""
    low = high = 2 / 3


class Own(Rule):
    """fitted on the own patch's rows only (nothing new for DistriFusion)"""
    def rows(self, x):
        now = torch.full_like(x, NAN)
        now[:, :, self.attention.now] = x[:, :, self.attention.now]
        return now


class Near(Rule):
    """rows weighted by exp(−distance to the nearest stale row / 1 token row)"""
    reach = 1.0

    def change(self, x, one, two, three):
        stale = x[0, 0, :, 0].isnan()
        if not stale.any() or stale.all():
            return super().change(x, one, two, three)
        line = torch.arange(x.shape[2]) // self.attention.columns
        distance = (line[:, None] - line[stale][None]).abs().min(1).values.float()
        weight = torch.exp(-distance / self.reach)[:, None]
        was = one - two
        before = torch.where(x.isnan(), NAN, was)
        return ratio(sums(weight * (x - one) * before, (-2, -1)), sums(weight * before * before, (-2, -1)), 0, 1) * was


class Previous(Rule):
    """sums of the previous step's rows added, at full weight"""
    weight = 1.0

    def change(self, x, one, two, three):
        step, before = one - two, two - three
        self.past = sums(step * before, (-2, -1)), sums(torch.where(step.isnan(), NAN, before * before), (-2, -1))
        return super().change(x, one, two, three)

    def more(self, top, bottom):
        return top + self.weight * self.past[0], bottom + self.weight * self.past[1]


class PreviousQuarter(Previous):
    """sums of the previous step's rows added, at a quarter's weight"""
    weight = 0.25


class PreviousRest(Previous):
    """sums of the previous step over the rows now stale added, at full weight"""
    def change(self, x, one, two, three):
        step, before = torch.where(x.isnan(), one - two, NAN), two - three
        self.past = sums(step * before, (-2, -1)), sums(torch.where(step.isnan(), NAN, before * before), (-2, -1))
        return Rule.change(self, x, one, two, three)


class Second(Rule):
    """second order: x1 + α (x1 − x2) + β (x1 − 2 x2 + x3), free 2 × 2 fit"""
    ridge, limit = 1e-6, 9.0

    def change(self, x, one, two, three):
        first = super().change(x, one, two, three)
        a, b, y = one - two, one - 2 * two + three, x - one
        known = ~(y + b).isnan()
        s = lambda p: sums(torch.where(known, p, NAN), (-2, -1))
        aa, ab, bb, ay, by = s(a * a), s(a * b), s(b * b), s(a * y), s(b * y)
        bb = bb * (1 + self.ridge)
        det = aa * bb - ab * ab
        beta = torch.where(det > 1e-9 * aa * bb, ((aa * by - ab * ay) / det).clamp(-self.limit, self.limit), 0.0)
        alpha = ratio(ay - beta * ab, aa, -self.limit, self.limit)
        second = alpha * a + beta.float() * b
        return torch.where(second.isnan() | ~known.any(), first, second)


class SecondRidge(Second):
    """the same with β damped (ridge 0.3) and |α|, |β| ≤ 1"""
    ridge, limit = 0.3, 1.0


class Ratio(Rule):
    """α = Δlog-SNR of this step ÷ that of the one before, no fit, ≤ 1.5"""
    def change(self, x, one, two, three):
        r = self.attention.ratio
        return min(1.5, r) * (one - two)


class RatioScaled(Rule):
    """α = fitted share in [0, 1] of that ratio"""
    def change(self, x, one, two, three):
        r = self.attention.ratio
        return super().change(x, one, one - r * (one - two), three)


class Mean(Rule):
    """beside α, the fresh rows' mean residual by channel is added"""
    share = 1.0

    def change(self, x, one, two, three):
        change = super().change(x, one, two, three)
        change = torch.where(change.isnan() & ~one.isnan(), 0.0, change)
        rest = x - one - change
        return change + self.share * torch.nan_to_num(rest.nanmean(dim=-2, keepdim=True))


class MeanHalf(Mean):
    """the same at half weight"""
    share = 0.5


class MeanShrunk(Mean):
    """the mean residual weighted n ÷ (n + 32) for n fresh rows"""
    def change(self, x, one, two, three):
        n = int((~x[0, 0, :, 0].isnan()).sum())
        self.share = n / (n + 32)
        return super().change(x, one, two, three)


class Shift(Rule):
    """the timestep's own part, to_k(shift) and to_v(shift), is taken out before and put back for the new step"""
    def __call__(self, x, one, two, three):
        c = self.attention.constants
        s = self.attention.step
        part = lambda k: c.get(s - k, torch.full_like(c[s], NAN))
        return super().__call__(x - part(0), one - part(1), two - part(2), three - part(3)) + part(0)


class ShiftStale(Shift):
    """the same without extrapolation"""
    def change(self, x, one, two, three):
        return torch.full_like(one, NAN)


class Local(Rule):
    """α by head, by the own patch's and all older rows: by-head with the previous step's sums added"""
    heads = True

    def change(self, x, one, two, three):
        step, before = by_head(one - two), by_head(two - three)
        self.past = sums(step * before, (-3, -1)), sums(torch.where(step.isnan(), NAN, before * before), (-3, -1))
        return super().change(x, one, two, three)

    def more(self, top, bottom):
        return top + self.past[0], bottom + self.past[1]


class Self(Rule):
    """α of each stale row by itself, from its own last three values, in [0, 1]"""
    def change(self, x, one, two, three):
        step, before = one - two, two - three
        own = ratio((step * before).sum(-1, keepdim=True), (before * before).sum(-1, keepdim=True), 0, 1) * step
        return torch.where(own.isnan(), super().change(x, one, two, three), own)


class Affine(Rule):
    """x1 + α (x1 − x2) + b: b by channel, both by one fit (α on what is left when the channel's mean is taken out)"""
    def change(self, x, one, two, three):
        was, step = one - two, x - one
        before = torch.where(step.isnan(), NAN, was)
        here, there = (torch.nan_to_num(p.nanmean(dim=-2, keepdim=True)) for p in (step, before))
        alpha = ratio(sums((step - here) * (before - there), (-2, -1)), sums((before - there) ** 2, (-2, -1)), 0, 1)
        return torch.where(was.isnan(), here, here + alpha * (was - there))


class MeanNew(Mean):
    """Mean, but only for rows that have no x2: K,V of the first step after one warm-up step"""
    def change(self, x, one, two, three):
        change = Rule.change(self, x, one, two, three)
        return torch.where(change.isnan(), super().change(x, one, two, three), change)


class MeanSecond(Second):
    """second order, then the mean residual"""
    def change(self, x, one, two, three):
        change = super().change(x, one, two, three)
        change = torch.where(change.isnan() & ~one.isnan(), 0.0, change)
        return change + torch.nan_to_num((x - one - change).nanmean(dim=-2, keepdim=True))


RULES = {r.__name__: r for r in (Stale, Predict, Head, Channel, ChannelShrunk, Wide, Free, Damped, One, TwoThirds, Own, Near, Previous, PreviousQuarter,
                                 PreviousRest, Second, SecondRidge, Ratio, RatioScaled, Mean, MeanHalf, MeanShrunk, Shift, ShiftStale, Local, Self, Affine, MeanNew, MeanSecond)}
