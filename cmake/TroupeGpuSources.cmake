# Folders of models/ that compute on a GPU: what scripts/gpu-check builds of the models, without text and pictures, whose
# libraries a machine with nothing but LibTorch does not have. The test gpu_sources_closed links them alone.
set(troupe_gpu_model_folders dit lora samplers vae)
