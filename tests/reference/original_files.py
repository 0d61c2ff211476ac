"""Single files as a model's authors, ComfyUI and A1111 have them, made of the small folders in tests/fixtures.

They are model folders whose components have such files in place of diffusers' own. Each file is given to diffusers'
conversion first, which must return the folder's tensors: so the names are the authors', not this page's.
"""
import inspect
import json
import re
import shutil

import gguf
import numpy
import torch
from diffusers import AutoencoderKLWan
from diffusers.loaders import single_file_utils as single_file
from safetensors.torch import load_file, save_file
from transformers import CLIPTextConfig, CLIPTextModelWithProjection

from common import FIXTURES, ROOT

UNET, VAE = 'model.diffusion_model.', 'first_stage_model.'


def swapped(tensor):
    return torch.cat(tensor.chunk(2)[::-1])


def replaced(name, *words):
    for ours, theirs in words:
        name = name.replace(ours, theirs)
    return name


class Taken(dict):
    """Tensors by diffusers' names, each to be taken once."""

    def join(self, *names):
        return torch.cat([self.pop(name) for name in names])

    def move(self, into, theirs, *ours, change=lambda tensor: tensor):
        """Weight and bias, where there is one, of the products `ours`, one below the other."""
        for part in ('weight', 'bias'):
            if f'{ours[0]}.{part}' in self:
                into[f'{theirs}.{part}'] = change(self.join(*(f'{name}.{part}' for name in ours)))


def flux(tensors):
    taken, file = Taken(tensors), {}
    for theirs, ours in (('time_in', 'timestep'), ('vector_in', 'text'), ('guidance_in', 'guidance')):
        for layer, number in (('in_layer', 1), ('out_layer', 2)):
            taken.move(file, f'{theirs}.{layer}', f'time_text_embed.{ours}_embedder.linear_{number}')
    for name in [name for name in taken if name.startswith('distilled_guidance_layer.')]:
        layers = (('linear_1', 'in_layer'), ('linear_2', 'out_layer'))
        file[re.sub(r'(norms\.\d+)\.weight', r'\1.scale', replaced(name, *layers))] = taken.pop(name)
    taken.move(file, 'img_in', 'x_embedder')
    taken.move(file, 'txt_in', 'context_embedder')
    taken.move(file, 'final_layer.linear', 'proj_out')
    taken.move(file, 'final_layer.adaLN_modulation.1', 'norm_out.linear', change=swapped)
    for i in range(count(taken, r'transformer_blocks\.')):
        block, attention = f'transformer_blocks.{i}.', f'transformer_blocks.{i}.attn.'
        for stream, names, norms, out, forward, norm in (
                ('img', ('to_q', 'to_k', 'to_v'), 'norm_', 'to_out.0', 'ff', 'norm1'),
                ('txt', ('add_q_proj', 'add_k_proj', 'add_v_proj'), 'norm_added_', 'to_add_out', 'ff_context', 'norm1_context')):
            theirs = f'double_blocks.{i}.{stream}_'
            taken.move(file, theirs + 'attn.qkv', *(attention + name for name in names))
            taken.move(file, theirs + 'attn.proj', attention + out)
            taken.move(file, theirs + 'mod.lin', f'{block}{norm}.linear')
            taken.move(file, theirs + 'mlp.0', f'{block}{forward}.net.0.proj')
            taken.move(file, theirs + 'mlp.2', f'{block}{forward}.net.2')
            file[theirs + 'attn.norm.query_norm.scale'] = taken.pop(f'{attention}{norms}q.weight')
            file[theirs + 'attn.norm.key_norm.scale'] = taken.pop(f'{attention}{norms}k.weight')
    for i in range(count(taken, r'single_transformer_blocks\.')):
        block, theirs = f'single_transformer_blocks.{i}.', f'single_blocks.{i}.'
        taken.move(file, theirs + 'linear1', *(block + name for name in ('attn.to_q', 'attn.to_k', 'attn.to_v', 'proj_mlp')))
        taken.move(file, theirs + 'linear2', block + 'proj_out')
        taken.move(file, theirs + 'modulation.lin', block + 'norm.linear')
        file[theirs + 'norm.query_norm.scale'] = taken.pop(block + 'attn.norm_q.weight')
        file[theirs + 'norm.key_norm.scale'] = taken.pop(block + 'attn.norm_k.weight')
    assert not taken, list(taken)
    return file


def sd3(tensors):
    taken, file = Taken(tensors), {'pos_embed': tensors['pos_embed.pos_embed']}
    del taken['pos_embed.pos_embed']
    taken.move(file, 'x_embedder.proj', 'pos_embed.proj')
    taken.move(file, 'context_embedder', 'context_embedder')
    for theirs, ours in (('t_embedder', 'timestep'), ('y_embedder', 'text')):
        for layer, number in ((0, 1), (2, 2)):
            taken.move(file, f'{theirs}.mlp.{layer}', f'time_text_embed.{ours}_embedder.linear_{number}')
    taken.move(file, 'final_layer.linear', 'proj_out')
    taken.move(file, 'final_layer.adaLN_modulation.1', 'norm_out.linear', change=swapped)
    blocks = count(taken, r'transformer_blocks\.')
    for i in range(blocks):
        block = f'transformer_blocks.{i}.'
        x, context = f'joint_blocks.{i}.x_block.', f'joint_blocks.{i}.context_block.'
        for place, attention, names, norms in (
                (x + 'attn.', block + 'attn.', ('to_q', 'to_k', 'to_v'), 'norm_'),
                (context + 'attn.', block + 'attn.', ('add_q_proj', 'add_k_proj', 'add_v_proj'), 'norm_added_'),
                (x + 'attn2.', block + 'attn2.', ('to_q', 'to_k', 'to_v'), 'norm_')):
            taken.move(file, place + 'qkv', *(attention + name for name in names))
            for which in 'qk':
                if f'{attention}{norms}{which}.weight' in taken:
                    file[f'{place}ln_{which}.weight'] = taken.pop(f'{attention}{norms}{which}.weight')
        taken.move(file, x + 'attn.proj', block + 'attn.to_out.0')
        taken.move(file, x + 'attn2.proj', block + 'attn2.to_out.0')
        taken.move(file, context + 'attn.proj', block + 'attn.to_add_out')
        for place, forward in ((x, 'ff'), (context, 'ff_context')):
            taken.move(file, place + 'mlp.fc1', f'{block}{forward}.net.0.proj')
            taken.move(file, place + 'mlp.fc2', f'{block}{forward}.net.2')
        taken.move(file, x + 'adaLN_modulation.1', block + 'norm1.linear')
        last = i + 1 == blocks
        taken.move(file, context + 'adaLN_modulation.1', block + 'norm1_context.linear',
                   change=swapped if last else lambda tensor: tensor)
    assert not taken, list(taken)
    return file


def unet(tensors, config):
    layers, levels = config['layers_per_block'], len(config['block_out_channels'])
    file = {}
    for name, tensor in tensors.items():
        theirs = replaced(name, ('time_embedding.linear_1', 'time_embed.0'), ('time_embedding.linear_2', 'time_embed.2'),
                          ('add_embedding.linear_1', 'label_emb.0.0'), ('add_embedding.linear_2', 'label_emb.0.2'),
                          ('conv_in.', 'input_blocks.0.0.'), ('conv_norm_out.', 'out.0.'), ('conv_out.', 'out.2.'),
                          ('mid_block.resnets.0', 'middle_block.0'), ('mid_block.attentions.0', 'middle_block.1'),
                          ('mid_block.resnets.1', 'middle_block.2'))
        found = re.match(r'(down|up)_blocks\.(\d+)\.(resnets|attentions|downsamplers|upsamplers)\.(\d+)\.(.*)', name)
        if found:
            way, block, kind, number, rest = found[1], int(found[2]), found[3], int(found[4]), found[5]
            if way == 'down':
                index = 1 + block * (layers + 1) + (layers if kind == 'downsamplers' else number)
                theirs = f'input_blocks.{index}.{1 if kind == "attentions" else 0}.{rest}'
                theirs = theirs.replace('.conv.', '.op.') if kind == 'downsamplers' else theirs
            else:
                index = block * (layers + 1) + (layers if kind == 'upsamplers' else number)
                attends = any(f'up_blocks.{block}.attentions.' in other for other in tensors)
                place = {'resnets': 0, 'attentions': 1, 'upsamplers': 2 if attends else 1}[kind]
                theirs = f'output_blocks.{index}.{place}.{rest}'
        if 'resnets' in name:
            theirs = replaced(theirs, ('.norm1.', '.in_layers.0.'), ('.conv1.', '.in_layers.2.'), ('.norm2.', '.out_layers.0.'),
                              ('.conv2.', '.out_layers.3.'), ('.time_emb_proj.', '.emb_layers.1.'),
                              ('.conv_shortcut.', '.skip_connection.'))
        file[theirs] = tensor
    return file


def vae(tensors, config):
    levels = len(config['block_out_channels'])
    file = {}
    for name, tensor in tensors.items():
        theirs = re.sub(r'up_blocks\.(\d+)', lambda found: f'up.{levels - 1 - int(found[1])}', name)
        theirs = replaced(theirs, ('down_blocks.', 'down.'), ('.resnets.', '.block.'), ('conv_shortcut', 'nin_shortcut'),
                          ('upsamplers.0.conv', 'upsample.conv'), ('downsamplers.0.conv', 'downsample.conv'),
                          ('mid_block.block.0', 'mid.block_1'), ('mid_block.block.1', 'mid.block_2'),
                          ('mid_block.attentions.0.group_norm', 'mid.attn_1.norm'),
                          ('mid_block.attentions.0.to_out.0', 'mid.attn_1.proj_out'),
                          ('mid_block.attentions.0.to_', 'mid.attn_1.'), ('conv_norm_out', 'norm_out'))
        if 'attentions' in name and theirs.endswith('.weight') and 'norm' not in theirs:
            tensor = tensor[:, :, None, None]  # a convolution of side 1
        file[theirs] = tensor
    return file


def open_clip(tensors):
    taken, file = Taken(tensors), {}
    for i in range(count(taken, r'text_model\.encoder\.layers\.')):
        layer, theirs = f'text_model.encoder.layers.{i}.', f'transformer.resblocks.{i}.'
        for part in ('weight', 'bias'):
            file[f'{theirs}attn.in_proj_{part}'] = taken.join(*(f'{layer}self_attn.{which}_proj.{part}' for which in 'qkv'))
        for name, ours in (('attn.out_proj', 'self_attn.out_proj'), ('mlp.c_fc', 'mlp.fc1'), ('mlp.c_proj', 'mlp.fc2'),
                           ('ln_1', 'layer_norm1'), ('ln_2', 'layer_norm2')):
            taken.move(file, theirs + name, layer + ours)
    taken.move(file, 'ln_final', 'text_model.final_layer_norm')
    file['token_embedding.weight'] = taken.pop('text_model.embeddings.token_embedding.weight')
    file['positional_embedding'] = taken.pop('text_model.embeddings.position_embedding.weight')
    file['text_projection'] = taken.pop('text_projection.weight').T.contiguous()
    taken.pop('text_model.embeddings.position_ids', None)
    assert not taken, list(taken)
    return file


def wan(tensors):
    file = {}
    for name, tensor in tensors.items():
        theirs = 'head.modulation' if name == 'scale_shift_table' else replaced(
            name, ('condition_embedder.time_embedder.linear_1', 'time_embedding.0'),
            ('condition_embedder.time_embedder.linear_2', 'time_embedding.2'),
            ('condition_embedder.text_embedder.linear_1', 'text_embedding.0'),
            ('condition_embedder.text_embedder.linear_2', 'text_embedding.2'),
            ('condition_embedder.time_proj', 'time_projection.1'), ('attn1', 'self_attn'), ('attn2', 'cross_attn'),
            ('.to_out.0.', '.o.'), ('.to_q.', '.q.'), ('.to_k.', '.k.'), ('.to_v.', '.v.'), ('ffn.net.0.proj', 'ffn.0'),
            ('ffn.net.2', 'ffn.2'), ('norm2', 'norm3'), ('scale_shift_table', 'modulation'), ('proj_out', 'head.head'))
        file[theirs] = tensor
    return file


def zimage(tensors):
    taken, file = Taken(tensors), {'norm_final.weight': torch.ones(1)}  # which nothing uses
    for place in [name.removesuffix('to_q.weight') for name in tensors if name.endswith('.attention.to_q.weight')]:
        taken.move(file, place + 'qkv', *(f'{place}to_{which}' for which in 'qkv'))
    for name, tensor in taken.items():
        file[replaced(name, ('all_final_layer.2-1.', 'final_layer.'), ('all_x_embedder.2-1.', 'x_embedder.'),
                      ('.attention.to_out.0.', '.attention.out.'), ('.norm_q.', '.q_norm.'), ('.norm_k.', '.k_norm.'))] = tensor
    return file


def flux2(tensors):
    taken, file = Taken(tensors), {}
    taken.move(file, 'final_layer.adaLN_modulation.1', 'norm_out.linear', change=swapped)
    for place in [name.removesuffix('to_q.weight') for name in tensors if name.endswith('.attn.to_q.weight')]:
        theirs = place.replace('transformer_blocks', 'double_blocks').removesuffix('attn.')
        taken.move(file, theirs + 'img_attn.qkv', *(f'{place}to_{which}' for which in 'qkv'))
        taken.move(file, theirs + 'txt_attn.qkv', *(f'{place}add_{which}_proj' for which in 'qkv'))
    for name, tensor in taken.items():
        block = (('single_transformer_blocks', 'single_blocks'), ('attn.to_qkv_mlp_proj', 'linear1'), ('attn.to_out', 'linear2'),
                 ('attn.norm_q.weight', 'norm.query_norm.scale'), ('attn.norm_k.weight', 'norm.key_norm.scale'))
        if name.startswith('transformer_blocks'):
            block = (('transformer_blocks', 'double_blocks'), ('attn.norm_added_q.weight', 'txt_attn.norm.query_norm.scale'),
                     ('attn.norm_added_k.weight', 'txt_attn.norm.key_norm.scale'), ('.attn.norm_q.weight', '.img_attn.norm.query_norm.scale'),
                     ('.attn.norm_k.weight', '.img_attn.norm.key_norm.scale'), ('attn.to_out.0', 'img_attn.proj'), ('attn.to_add_out', 'txt_attn.proj'),
                     ('ff_context.linear_in', 'txt_mlp.0'), ('ff_context.linear_out', 'txt_mlp.2'), ('ff.linear_in', 'img_mlp.0'), ('ff.linear_out', 'img_mlp.2'))
        file[replaced(name, *block, ('context_embedder', 'txt_in'), ('x_embedder', 'img_in'), ('time_guidance_embed.timestep_embedder.linear_1', 'time_in.in_layer'),
                      ('time_guidance_embed.timestep_embedder.linear_2', 'time_in.out_layer'), ('_img.linear.', '_img.lin.'), ('_txt.linear.', '_txt.lin.'),
                      ('single_stream_modulation.linear', 'single_stream_modulation.lin'), ('proj_out.', 'final_layer.linear.'))] = tensor
    return file


def wan_vae(tensors):
    file = {}
    for name, tensor in tensors.items():
        theirs = replaced(
            name, ('mid_block.resnets.0.', 'middle.0.'), ('mid_block.attentions.0.', 'middle.1.'),
            ('mid_block.resnets.1.', 'middle.2.'), ('down_blocks.', 'downsamples.'), ('.norm1.', '.residual.0.'),
            ('.conv1.', '.residual.2.'), ('.norm2.', '.residual.3.'), ('.conv2.', '.residual.6.'),
            ('conv_shortcut', 'shortcut'), ('coder.conv_in', 'coder.conv1'), ('coder.norm_out', 'coder.head.0'),
            ('coder.conv_out', 'coder.head.2'), ('post_quant_conv', 'conv2'), ('quant_conv', 'conv1'))
        theirs = re.sub(r'up_blocks\.(\d+)\.resnets\.(\d+)',
                        lambda found: f'upsamples.{4 * int(found[1]) + int(found[2])}', theirs)
        theirs = re.sub(r'up_blocks\.(\d+)\.upsamplers\.0', lambda found: f'upsamples.{4 * int(found[1]) + 3}', theirs)
        file[theirs] = tensor
    return file


def count(tensors, prefix):
    numbers = [int(found[1]) for name in tensors if (found := re.match(prefix + r'(\d+)\.', name))]
    return max(numbers) + 1 if numbers else 0


def check(converted, tensors, what):
    """That diffusers' conversion of a file returns the folder's tensors."""
    missing = set(tensors) - set(converted)
    assert not missing, f'{what}: {sorted(missing)}'
    for name, tensor in tensors.items():
        # A convolution of side 1 and a product have the same numbers.
        assert torch.equal(converted[name].reshape(tensor.shape), tensor), f'{what}: {name}'


def convert_flux(file, width, model='flux'):
    # diffusers takes the width of the published model.
    name = f'convert_{model}_transformer_checkpoint_to_diffusers'
    names = vars(single_file).copy()
    exec(re.sub(r'inner_dim = 3072', f'inner_dim = {width}', inspect.getsource(names[name])), names)
    return names[name](file)


class Folder:
    def __init__(self, fixtures, name, out):
        self.source, self.folder = fixtures / name, out / name
        shutil.copytree(self.source, self.folder, copy_function=shutil.copyfile)

    def tensors(self, component):
        (file,) = (self.source / component).glob('*.safetensors')
        return load_file(file)

    def config(self, component):
        return json.loads((self.source / component / 'config.json').read_text())

    def put(self, component, file, name='their.safetensors'):
        for old in (self.folder / component).glob('*.safetensors'):
            old.unlink()
        save_file({key: tensor.contiguous() for key, tensor in file.items()}, self.folder / component / name)


def packed(tensor):
    """The values of a tensor as GGUF files mostly have them, with the type: q8_0 where rows are whole blocks of it."""
    values = tensor.float().numpy()
    if values.ndim == 2 and values.shape[1] % 32 == 0:
        kind = gguf.GGMLQuantizationType.Q8_0
        return gguf.quants.quantize(values, kind), kind, torch.from_numpy(
            gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind))
    return values, gguf.GGMLQuantizationType.F32, tensor.float()


def write_gguf(path, tensors):
    """Writes arrays with their types."""
    writer = gguf.GGUFWriter(path, 'troupe-test')
    writer.add_array('a list of texts', ['one', 'two'])
    for name, (array, kind) in tensors.items():
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def every_type(out):
    """Blocks of any bits, with scales that are finite, of each of GGUF's types, and gguf-py's values of them."""
    random = numpy.random.default_rng(7)
    halves = {'Q4_0': [0], 'Q4_1': [0, 2], 'Q5_0': [0], 'Q5_1': [0, 2], 'Q8_0': [0], 'Q2_K': [80, 82], 'Q3_K': [108],
              'Q4_K': [0, 2], 'Q5_K': [0, 2], 'Q6_K': [208]}
    stored, values = {}, {}
    for name, places in halves.items():
        kind = gguf.GGMLQuantizationType[name]
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = random.integers(0, 256, (6, 2 * size), dtype=numpy.uint8)  # rows of two blocks
        for place in places:
            for block in (0, size):
                scales = random.normal(0, 0.1, 6).astype(numpy.float16).view(numpy.uint8).reshape(6, 2)
                blocks[:, block + place:block + place + 2] = scales
        stored[name.lower()] = blocks, kind
        values[name.lower()] = torch.from_numpy(gguf.quants.dequantize(blocks, kind).astype(numpy.float32))
        assert values[name.lower()].shape == (6, 2 * elements)
    for name, kind in (('float16', 'F16'), ('float32', 'F32')):
        array = random.normal(0, 1, (5, 3)).astype(name)
        stored[name] = array, gguf.GGMLQuantizationType[kind]
        values[name] = torch.from_numpy(array)
    write_gguf(out / 'types.gguf', stored)
    save_file(values, out / 'types.safetensors')


def prefixed(prefix, file):
    return {prefix + name: tensor for name, tensor in file.items()}


def make():
    fixtures, out = ROOT / 'tests/fixtures', FIXTURES / 'original-files'
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)

    folder = Folder(fixtures, 'tiny-flux', out)  # the transformer and the VAE alone, as ComfyUI has them
    tensors, config = folder.tensors('transformer'), folder.config('transformer')
    file = flux(tensors)
    check(convert_flux(dict(file), config['num_attention_heads'] * config['attention_head_dim']), tensors, 'FLUX.1')
    folder.put('transformer', file)
    vae_file = vae(folder.tensors('vae'), folder.config('vae'))
    check(single_file.convert_ldm_vae_checkpoint(dict(vae_file), folder.config('vae')), folder.tensors('vae'), 'ae')
    folder.put('vae', vae_file)

    # The same transformer in GGUF, and in 8-bit floats with scales, each beside a folder of diffusers' with its values.
    every_type(out)
    kinds = {name: packed(tensor) for name, tensor in file.items()}
    Folder(fixtures, 'tiny-flux', out / 'gguf').put('transformer', {})
    (out / 'gguf/tiny-flux/transformer/their.safetensors').unlink()
    write_gguf(out / 'gguf/tiny-flux/transformer/their.gguf', {name: kind[:2] for name, kind in kinds.items()})
    values = {name: kind[2] for name, kind in kinds.items()}
    width = config['num_attention_heads'] * config['attention_head_dim']
    Folder(fixtures, 'tiny-flux', out / 'gguf-values').put('transformer', convert_flux(values, width))

    small, values = {'scaled_fp8': torch.zeros(2, dtype=torch.float8_e4m3fn)}, {}
    for name, tensor in file.items():
        if tensor.ndim < 2:
            small[name] = values[name] = tensor
            continue
        scale = tensor.float().abs().max() / 448
        small[name] = (tensor.float() / scale).to(torch.float8_e4m3fn)
        small[name.removesuffix('.weight') + '.scale_weight'] = scale.reshape(1)
        values[name] = small[name].float() * scale
    Folder(fixtures, 'tiny-flux', out / 'fp8').put('transformer', prefixed(UNET, small))
    Folder(fixtures, 'tiny-flux', out / 'fp8-values').put('transformer', convert_flux(values, width))

    for name in ('tiny-sd3', 'tiny-sd35'):  # a whole checkpoint, the same file in each component's folder
        folder = Folder(fixtures, name, out)
        tensors = folder.tensors('transformer')
        file = sd3(tensors)
        check(single_file.convert_sd3_transformer_checkpoint_to_diffusers(dict(file)), tensors, name)
        whole = prefixed(UNET, file) | prefixed(VAE, vae(folder.tensors('vae'), folder.config('vae')))
        for component, key in (('text_encoder', 'clip_l'), ('text_encoder_2', 'clip_g'), ('text_encoder_3', 't5xxl')):
            if (folder.source / component).is_dir() and list((folder.source / component).glob('*.safetensors')):
                whole |= prefixed(f'text_encoders.{key}.transformer.', folder.tensors(component))
        for component in ('transformer', 'vae', 'text_encoder', 'text_encoder_2', 'text_encoder_3'):
            if (folder.source / component).is_dir() and list((folder.source / component).glob('*.safetensors')):
                folder.put(component, whole)

    for name in ('tiny-sd15', 'tiny-sdxl'):
        folder = Folder(fixtures, name, out)
        tensors, config = folder.tensors('unet'), folder.config('unet')
        file = prefixed(UNET, unet(tensors, config))
        check(single_file.convert_ldm_unet_checkpoint(dict(file), config), tensors, name)
        vae_file = prefixed(VAE, vae(folder.tensors('vae'), folder.config('vae')))
        check(single_file.convert_ldm_vae_checkpoint(dict(vae_file), folder.config('vae')), folder.tensors('vae'), name)
        whole = file | vae_file | {'alphas_cumprod': torch.zeros(10)}
        if name == 'tiny-sd15':
            whole |= prefixed('cond_stage_model.transformer.', folder.tensors('text_encoder'))
            components = ('unet', 'vae', 'text_encoder')
        else:
            whole |= prefixed('conditioner.embedders.0.transformer.', folder.tensors('text_encoder'))
            second = folder.tensors('text_encoder_2')
            clip = prefixed('conditioner.embedders.1.model.', open_clip(second))
            model = CLIPTextModelWithProjection(CLIPTextConfig(**folder.config('text_encoder_2')))
            second.pop('text_model.embeddings.position_ids', None)
            check(single_file.convert_open_clip_checkpoint(model, dict(clip), 'conditioner.embedders.1.model.'), second, name)
            whole |= clip | {'conditioner.embedders.1.model.logit_scale': torch.ones(())}
            components = ('unet', 'vae', 'text_encoder', 'text_encoder_2')
        for component in components:
            folder.put(component, whole)

    folder = Folder(FIXTURES, 'tiny-zimage', out)
    tensors = folder.tensors('transformer')
    file = zimage(tensors)
    check(single_file.convert_z_image_transformer_checkpoint_to_diffusers(dict(file)), tensors, 'Z-Image')
    folder.put('transformer', prefixed(UNET, file))

    folder = Folder(FIXTURES, 'tiny-flux2', out)
    tensors = folder.tensors('transformer')
    file = flux2(tensors)
    check(single_file.convert_flux2_transformer_checkpoint_to_diffusers(dict(file)), tensors, 'FLUX.2')
    folder.put('transformer', prefixed(UNET, file))
    tensors = folder.tensors('vae')
    halves = (('post_quant_conv.', 'decoder.post_quant_conv.'), ('quant_conv.', 'encoder.quant_conv.'))
    folder.put('vae', {next((new + name.removeprefix(old) for old, new in halves if name.startswith(old)), name): tensor
                       for name, tensor in vae(tensors, folder.config('vae')).items()})

    folder = Folder(FIXTURES, 'tiny-chroma', out)
    tensors, config = folder.tensors('transformer'), folder.config('transformer')
    file = flux(tensors)
    check(convert_flux(dict(file), config['num_attention_heads'] * config['attention_head_dim'], 'chroma'), tensors, 'Chroma')
    folder.put('transformer', file)

    folder = Folder(fixtures, 'tiny-wan', out)
    tensors = folder.tensors('transformer')
    file = wan(tensors)
    check(single_file.convert_wan_transformer_to_diffusers(dict(file)), tensors, 'Wan')
    folder.put('transformer', prefixed(UNET, file))

    # diffusers' conversion knows the published VAE's layers alone, which the small one has not.
    config = folder.config('vae') | {'num_res_blocks': 2, 'dim_mult': [1, 2, 4, 4]}
    torch.manual_seed(3)
    tensors = AutoencoderKLWan.from_config(config).state_dict()
    file = wan_vae(tensors)
    check(single_file.convert_wan_vae_to_diffusers(dict(file)), tensors, "Wan's VAE")
    for kind, weights in (('wan-vae', file), ('wan-vae-values', tensors)):
        folder = Folder(fixtures, 'tiny-wan', out / kind)
        folder.put('vae', weights)
        (folder.folder / 'vae/config.json').write_text(json.dumps(config))
