"""Trajectories of diffusers' schedulers under a model that is a formula."""
import math
import warnings

import diffusers
import torch

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


def make():
    book = Book("samplers", "`class` built from `config`, set_timesteps(`steps`), set_begin_index(0) where there is one. x0 = noise * init_noise_sigma "
                "(noise: tensor `noise`); for every t of `timesteps`: x = step(output, t, x). NAME.trajectory [steps + 1, 1, 4, 4, 4] holds x0 and every "
                "x after it. `sigmas` (float32 values; absent for DDIM) as the scheduler holds them after set_timesteps. `refused`: diffusers itself "
                "raises this on the case, so it has no trajectory.", formula=FORMULA)
    noise = torch.randn(1, 4, 4, 4, generator=generator(0))
    book.put("noise", noise)
    for k, (kind, steps, config) in enumerate(cases()):
        name, fields = f"{kind[:4].rstrip('SD').lower()}_{k:02}", {"class": kind, "steps": steps, "config": config}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                scheduler = getattr(diffusers, kind)(**config)
                scheduler.set_timesteps(steps)
            if hasattr(scheduler, "set_begin_index"):
                scheduler.set_begin_index(0)
            x = noise * scheduler.init_noise_sigma
            trajectory = [x]
            for t in scheduler.timesteps:
                output = torch.tanh(0.7 * scheduler.scale_model_input(x, t) + 0.3 * math.cos(float(t) / 100))
                x = scheduler.step(output, t, x, return_dict=False)[0]
                trajectory.append(x)
        except (ValueError, IndexError, RuntimeError, NotImplementedError) as error:
            book.case(name, {**fields, "refused": f"{type(error).__name__}: {str(error).splitlines()[0]}"}, {})
            continue
        fields["init_noise_sigma"] = float(scheduler.init_noise_sigma)
        fields["timesteps"] = [float(t) for t in scheduler.timesteps]
        if hasattr(scheduler, "sigmas"):
            fields["sigmas"] = [float(s) for s in scheduler.sigmas]
        fields["finite"] = bool(torch.isfinite(torch.stack(trajectory)).all())
        book.case(name, fields, {"trajectory": torch.stack(trajectory)})
    book.save()
    for case in book.cases:
        if "refused" in case or not case["finite"]:
            print("   ", case["name"], case["class"], case["steps"], case["config"], case.get("refused", "not finite"))
