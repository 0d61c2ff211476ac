"""Trajectories of diffusers' schedulers under a model that is a formula."""
import inspect
import math
import warnings

import diffusers
import numpy as np
import torch
from diffusers.pipelines.flux.pipeline_flux import calculate_shift

from common import Book, generator

FORMULA = "output = tanh(0.7 * scale_model_input(x, t) + 0.3 * cos(t / 100)); the cosine in double, the rest in float32"
LINEAR, SCALED, COSINE = (dict(num_train_timesteps=1000, beta_start=a, beta_end=b, beta_schedule=s) for a, b, s in (
    (1e-4, 0.02, "linear"), (0.00085, 0.012, "scaled_linear"), (1e-4, 0.02, "squaredcos_cap_v2")))


def cases():
    def dpm(steps, **config): return "DPMSolverMultistepScheduler", steps, {**LINEAR, "algorithm_type": "dpmsolver++", **config}
    def ddim(steps, **config): return "DDIMScheduler", steps, {**SCALED, "clip_sample": False, "set_alpha_to_one": False, "steps_offset": 1, **config}
    def euler(steps, **config): return "EulerDiscreteScheduler", steps, {**SCALED, **config}
    for order in (1, 2, 3):
        for steps in (1, 2, 4, 10, 20):
            yield dpm(steps, solver_order=order)
        yield dpm(6, solver_order=order, lower_order_final=False, final_sigmas_type="sigma_min")
        yield dpm(8, solver_order=order, solver_type="heun")
        yield dpm(8, solver_order=order, use_karras_sigmas=True)
        yield dpm(8, solver_order=order, euler_at_final=True)
    yield dpm(25, solver_order=2)
    for spacing in ("linspace", "leading", "trailing"):
        yield dpm(7, timestep_spacing=spacing, steps_offset=1 if spacing == "leading" else 0)
        yield dpm(10, timestep_spacing=spacing, use_karras_sigmas=True, **SCALED)
    for kind in ("epsilon", "v_prediction", "sample"):
        yield dpm(8, prediction_type=kind, **SCALED)
        yield dpm(8, prediction_type=kind, solver_order=3, final_sigmas_type="sigma_min")
    yield dpm(8, **COSINE)
    yield dpm(8, lambda_min_clipped=-5.1, **COSINE)
    yield dpm(20, lower_order_final=False)
    yield dpm(8, use_lu_lambdas=True)
    yield dpm(8, use_exponential_sigmas=True)
    yield dpm(8, use_beta_sigmas=True)
    yield dpm(8, variance_type="learned_range")
    yield dpm(8, rescale_betas_zero_snr=True, timestep_spacing="trailing", prediction_type="v_prediction")
    yield dpm(8, thresholding=True, dynamic_thresholding_ratio=0.9, sample_max_value=1.5)
    yield dpm(8, use_flow_sigmas=True, prediction_type="flow_prediction", flow_shift=3.0)
    yield dpm(8, trained_betas=[round(1e-4 + 2e-5 * k, 8) for k in range(100)], num_train_timesteps=100)
    for steps in (1, 2, 4, 10, 20, 25):
        yield ddim(steps)
    for spacing in ("linspace", "leading", "trailing"):
        yield ddim(7, timestep_spacing=spacing, steps_offset=0)
    for kind in ("v_prediction", "sample"):
        yield ddim(8, prediction_type=kind)
    yield ddim(8, set_alpha_to_one=True, steps_offset=0)
    yield ddim(8, clip_sample=True, clip_sample_range=1.5)
    yield ddim(8, rescale_betas_zero_snr=True, timestep_spacing="trailing", prediction_type="v_prediction")
    yield ddim(8, thresholding=True, dynamic_thresholding_ratio=0.9, sample_max_value=1.5)
    yield ddim(8, **LINEAR)
    yield ddim(8, **COSINE)
    for steps in (1, 2, 4, 10, 20):
        yield euler(steps)
    for spacing in ("linspace", "leading", "trailing"):
        yield euler(7, timestep_spacing=spacing, steps_offset=1)
        yield euler(7, timestep_spacing=spacing, use_karras_sigmas=True)
    for kind in ("v_prediction", "sample"):
        yield euler(8, prediction_type=kind)
    yield euler(8, interpolation_type="log_linear")
    yield euler(8, final_sigmas_type="sigma_min")
    yield euler(8, use_exponential_sigmas=True)
    yield euler(8, use_beta_sigmas=True)
    yield euler(8, timestep_type="continuous", prediction_type="v_prediction", use_karras_sigmas=True, sigma_min=0.01, sigma_max=80.0)
    yield euler(8, rescale_betas_zero_snr=True, timestep_spacing="trailing", prediction_type="v_prediction")
    yield euler(8, **LINEAR)
    yield euler(8, **COSINE)
    yield from new_cases()


def new_cases():
    def dpm(steps, **config): return "DPMSolverMultistepScheduler", steps, {**LINEAR, "algorithm_type": "dpmsolver++", **config}
    def sde(steps, **config): return dpm(steps, **{"algorithm_type": "sde-dpmsolver++", **config})
    def ancestral(steps, **config): return "EulerAncestralDiscreteScheduler", steps, {**SCALED, **config}
    def ddpm(steps, **config): return "DDPMScheduler", steps, {**SCALED, "clip_sample": False, **config}
    def lcm(steps, **config): return "LCMScheduler", steps, config
    def unipc(steps, **config): return "UniPCMultistepScheduler", steps, {**SCALED, **config}
    def flow(steps, run=None, **config): return "FlowMatchEulerDiscreteScheduler", steps, config, run or {}
    for order in (1, 2, 3):
        for steps in (1, 3, 8, 17):
            yield sde(steps, solver_order=order)
        yield sde(8, solver_order=order, solver_type="heun", use_karras_sigmas=True)
    yield sde(8, timestep_spacing="trailing", prediction_type="v_prediction", rescale_betas_zero_snr=True)
    yield sde(8, use_flow_sigmas=True, prediction_type="flow_prediction", flow_shift=3.0)
    for order in (1, 3):
        yield dpm(6, solver_order=order, use_flow_sigmas=True, prediction_type="flow_prediction")
        yield dpm(6, solver_order=order, use_beta_sigmas=True, **SCALED)
    for steps in (1, 2, 5, 20):
        yield ancestral(steps)
        yield ddpm(steps)
        yield unipc(steps)
        yield lcm(steps)
    for spacing in ("linspace", "leading", "trailing"):
        for make in (ancestral, ddpm, unipc):
            yield make(7, timestep_spacing=spacing, steps_offset=1 if spacing == "leading" else 0)
    for kind in ("v_prediction", "sample", "epsilon"):
        for make in (ancestral, ddpm, unipc, lcm):
            yield make(6, prediction_type=kind, **LINEAR)
    for make in (ancestral, ddpm, unipc, lcm):
        yield make(6, **COSINE)
        yield make(6, timestep_spacing="trailing", rescale_betas_zero_snr=True, prediction_type="v_prediction")
    for make in (ddpm, lcm):
        yield make(6, clip_sample=True, clip_sample_range=0.7)
    for make in (ddpm, lcm, unipc):
        yield make(6, thresholding=True, dynamic_thresholding_ratio=0.9, sample_max_value=1.5)
    for kind in ("fixed_small_log", "fixed_large", "learned_range"):
        yield ddpm(6, variance_type=kind)
    yield lcm(4, original_inference_steps=30, timestep_scaling=3.0)
    yield lcm(7, original_inference_steps=7)
    yield lcm(8, original_inference_steps=7)
    for order in (1, 2, 3):
        for solver in ("bh1", "bh2"):
            for x0 in (True, False):
                yield unipc(9, solver_order=order, solver_type=solver, predict_x0=x0, final_sigmas_type="zero" if x0 and solver == "bh2" else "sigma_min")
        yield unipc(9, solver_order=order, lower_order_final=False, final_sigmas_type="sigma_min")
        yield unipc(9, solver_order=order, disable_corrector=[0, 1, 4])
        yield unipc(9, solver_order=order, use_flow_sigmas=True, prediction_type="flow_prediction", flow_shift=3.0)
    yield unipc(9, solver_type="midpoint")
    yield unipc(9, use_flow_sigmas=True, prediction_type="flow_prediction", shift_terminal=0.1)
    yield unipc(9, use_flow_sigmas=True, prediction_type="flow_prediction", final_sigmas_type="sigma_min")
    for key in ("use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas"):
        yield unipc(8, **{key: True})
        yield unipc(8, final_sigmas_type="sigma_min", sigma_min=0.05, sigma_max=10.0, **{key: True})
        yield flow(7, shift=2.0, **{key: True})
    for steps in (1, 2, 4, 28):
        yield flow(steps)
        yield flow(steps, shift=3.0)
        yield flow(steps, dict(even_sigmas=True), shift=3.0)
        for tokens in (64, 256, 1024, 4096, 9000):
            yield flow(steps, dict(image_tokens=tokens, even_sigmas=True), use_dynamic_shifting=True)
    for tokens in (256, 2000):
        yield flow(6, dict(image_tokens=tokens), use_dynamic_shifting=True, base_shift=0.3, max_shift=0.9, base_image_seq_len=100, max_image_seq_len=2000)
        yield flow(6, dict(image_tokens=tokens), use_dynamic_shifting=True, time_shift_type="linear")
        yield flow(6, dict(image_tokens=tokens, even_sigmas=True), use_dynamic_shifting=True, time_shift_type="linear", shift_terminal=0.02)
    yield flow(6, shift=3.0, shift_terminal=0.1)
    yield flow(6, shift=3.0, stochastic_sampling=True)
    yield flow(6, dict(even_sigmas=True), stochastic_sampling=True, num_train_timesteps=400)
    yield from pndm_cases()


def pndm_cases():
    def plms(steps, run=None, **config): return "PNDMScheduler", steps, {**SCALED, "skip_prk_steps": True, "set_alpha_to_one": False, "steps_offset": 1, **config}, run or {}
    def rounds(steps, run=None, **config): return "PNDMScheduler", steps, {**LINEAR, **config}, run or {}
    for make in (plms, rounds):
        for steps in (1, 2, 3, 4, 5, 9, 20):
            yield make(steps)
        for spacing in ("linspace", "leading", "trailing"):
            yield make(7, timestep_spacing=spacing, steps_offset=0)
        yield make(8, prediction_type="v_prediction")
        yield make(8, set_alpha_to_one=True, steps_offset=0)
        yield make(6, **COSINE)
        yield make(6, trained_betas=[round(1e-4 + 2e-5 * k, 8) for k in range(100)], num_train_timesteps=100)
        for first in (1, 2, 5, 8):
            yield make(8, dict(first=first))
    yield rounds(8, dict(first=14))
    yield plms(1000)


def start(kind, steps, config, run):
    """The scheduler as pipelines set it up: SD3 leaves the sigmas to it, FLUX gives them (even_sigmas); both give mu."""
    scheduler = getattr(diffusers, kind)(**config)
    extra = {}
    if config.get("use_dynamic_shifting"):
        c = scheduler.config
        extra["mu"] = calculate_shift(run["image_tokens"], c.base_image_seq_len, c.max_image_seq_len, c.base_shift, c.max_shift)
    if run.get("even_sigmas"):
        scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), **extra)
    else:
        scheduler.set_timesteps(steps, **extra)
    return scheduler


def make():
    book = Book("samplers", "`class` built from `config`, set_timesteps(`steps`), set_begin_index(0) where there is one. x0 = noise * init_noise_sigma "
                "(noise: tensor `noise`); for every t of `timesteps`: x = step(output, t, x). NAME.trajectory [steps + 1, 1, 4, 2, 2] holds x0 and every "
                "x after it. `sigmas` (float32 values; absent for DDIM) as the scheduler holds them after set_timesteps. `refused`: diffusers itself "
                "raises this on the case, so it has no trajectory. Noise of a step comes from the generator that drew `noise`, going on. `run`: "
                "image_tokens gives mu as pipelines do, even_sigmas sets sigmas as FLUX's, first leaves out as many timesteps, as image-to-image pipelines do, and x0 = add_noise(tanh(noise, columns reversed), noise). DDPM with learned_range: tanh(0.5 x) is joined to the output.", formula=FORMULA)
    noise = torch.randn(1, 4, 2, 2, generator=generator(0))
    book.put("noise", noise)
    for k, (kind, steps, config, *run) in enumerate(cases()):
        name, fields = f"{kind[:4].rstrip('SD').lower()}_{k:02}", {"class": kind, "steps": steps, "config": config}
        run = run[0] if run else {}
        if run:
            fields["run"] = run
        drawn = generator(0)
        torch.randn(1, 4, 2, 2, generator=drawn)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                scheduler = start(kind, steps, config, run)
            draws = {"generator": drawn} if "generator" in inspect.signature(scheduler.step).parameters else {}
            if hasattr(scheduler, "set_begin_index"):
                scheduler.set_begin_index(0)
            sigma = getattr(scheduler, "init_noise_sigma", 1.0)
            times = scheduler.timesteps[run.get("first", 0):]
            if not len(times):
                raise ValueError("no step at all")
            x = noise * sigma if "first" not in run else scheduler.add_noise(torch.tanh(noise.flip(3)), noise, times[:1])
            trajectory = [x]
            for t in times:
                seen = scheduler.scale_model_input(x, t) if hasattr(scheduler, "scale_model_input") else x
                output = torch.tanh(0.7 * seen + 0.3 * math.cos(float(t) / 100))
                if kind == "DDPMScheduler" and config.get("variance_type") == "learned_range":
                    output = torch.cat([output, torch.tanh(0.5 * x)], 1)
                x = scheduler.step(output, t, x, return_dict=False, **draws)[0]
                trajectory.append(x)
        except (ValueError, IndexError, RuntimeError, NotImplementedError) as error:
            book.case(name, {**fields, "refused": f"{type(error).__name__}: {str(error).splitlines()[0]}"}, {})
            continue
        fields["init_noise_sigma"] = float(sigma)
        fields["timesteps"] = [float(t) for t in times]
        if hasattr(scheduler, "sigmas"):
            fields["sigmas"] = [float(s) for s in scheduler.sigmas]
        fields["finite"] = bool(torch.isfinite(torch.stack(trajectory)).all())
        book.case(name, fields, {"trajectory": torch.stack(trajectory)})
    book.save()
    for case in book.cases:
        if "refused" in case or not case["finite"]:
            print("   ", case["name"], case["class"], case["steps"], case["config"], case.get("refused", "not finite"))
